"""What an epoch that begins means for the data of a fit."""

from easyddl.data.kinds import is_a
from easyddl.data.shard import EPOCH

# Where the data hold what has an order by epoch, as PyTorch's loaders hold their samplers.
_INNER = ("dataset", "sampler", "batch_sampler")


def begin(data, epoch):
    """Tells the data, where they want to know, which epoch begins.

    Args:
        data: The argument `x` of `model.fit()`.
        epoch: Integer, from 0.

    Raises:
        ValueError: If a `tf.data.Dataset` with an order by epoch never ends.
    """
    setters = _setters(data)
    if setters and is_a(data, "tensorflow", "DatasetV2") and int(data.cardinality()) == -1:
        raise ValueError(
            "A dataset that is shuffled anew in each epoch must end with the epoch: leave out "
            "`repeat()`; `model.fit()` begins anew by itself. Received: x, a tf.data.Dataset made "
            f'by split_data(..., shuffle="{EPOCH}") and repeated for ever'
        )
    for set_epoch in setters:
        set_epoch(epoch)


def _setters(data):
    found = []
    if callable(getattr(data, "set_epoch", None)):
        found.append(data.set_epoch)
    for inner in _inner(data):
        found.extend(_setters(inner))
    return found


def _inner(data):
    if is_a(data, "tensorflow", "DatasetV2"):
        return data._inputs()
    if is_a(data, "torch") or is_a(data, "keras", "PyDataset"):
        return [getattr(data, name) for name in _INNER if hasattr(data, name)]
    return []


def in_order(arguments):
    """The arguments of a fit, such that Keras leaves the order of an epoch as it is.

    Keras would permute the batches by a rank's own random numbers; and with `steps_per_epoch` it
    would go on in the middle of the data where a new epoch, and so a new order, begins.
    """
    data = arguments.get("x")
    if not is_a(data, "easyddl", "EpochOrder") or data.part.shuffle != EPOCH:
        return arguments
    changed = {**arguments, "shuffle": False}
    steps = arguments.get("steps_per_epoch")
    if steps is not None and steps < data.num_batches:
        changed.update(x=data.first(steps), steps_per_epoch=None)
    return changed
