"""Passes the number of the epoch to the data of a fit."""

from easyddl.data.kinds import is_a
from easyddl.data.shard import EPOCH

# Attributes of a dataset or loader that may hold an object whose order depends on the epoch, for
# example the sampler of a PyTorch loader.
_INNER = ("dataset", "sampler", "batch_sampler")


def set_epochs(data, epoch):
    """Calls `set_epoch` of the data, and of the datasets and samplers inside it.

    Args:
        data: The argument `x` of `model.fit()`.
        epoch: Integer, from 0.

    Raises:
        ValueError: If the order of a `tf.data.Dataset` depends on the epoch, but it never ends.
    """
    setters = list(_setters(data))
    if setters and is_a(data, "tensorflow", "DatasetV2") and int(data.cardinality()) == -1:
        raise ValueError(
            "A dataset that is reshuffled in each epoch must end with the epoch: leave out "
            "`repeat()`; `model.fit()` restarts the dataset itself. Received: x, a tf.data.Dataset "
            f'made by split_data(..., shuffle="{EPOCH}") and repeated without end'
        )
    for set_epoch in setters:
        set_epoch(epoch)


def _setters(data):
    if callable(getattr(data, "set_epoch", None)):
        yield data.set_epoch
    for inner in inner_of(data):
        yield from _setters(inner)


def inner_of(data):
    """Returns the datasets, loaders and samplers inside of a dataset or a loader.

    Args:
        data: Any object. For arrays the result is empty.
    """
    if is_a(data, "tensorflow", "DatasetV2"):
        return data._inputs()
    if is_a(data, "torch") or is_a(data, "keras", "PyDataset"):
        return [getattr(data, name) for name in _INNER if hasattr(data, name)]
    return []


def keep_order(arguments):
    """Changes the arguments of a fit so that Keras keeps the order of an epoch.

    Without this change Keras would permute the batches with a rank's own random numbers. With
    `steps_per_epoch` it would continue in the middle of the data, although a new epoch begins and
    therefore a new order.

    Args:
        arguments: Dict of the arguments of `keras.Model.fit`.

    Returns:
        Dict of the changed arguments.
    """
    data = arguments.get("x")
    if not is_a(data, "easyddl", "EpochOrder") or data.shard.shuffle != EPOCH:
        return arguments
    changed = {**arguments, "shuffle": False}
    steps = arguments.get("steps_per_epoch")
    if steps is not None and steps < data.num_batches:
        changed.update(x=data.first(steps), steps_per_epoch=None)
    return changed
