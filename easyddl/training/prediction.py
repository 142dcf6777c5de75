"""Predictions of all ranks together, in the order of the data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from easyddl.collectives import arrays, objects
from easyddl.data import batch_range
from easyddl.runtime import validators, world
from easyddl.steps import context
from easyddl.training.agreement import replicas


@world.on_all_ranks("predict()", of_script=True)
def predict(
    model: keras.Model,
    x: Any,
    batch_size: int | None = None,
    verbose: str | int = "auto",
    steps: int | None = None,
) -> Any:
    """Predicts on all ranks together, and returns the predictions in the order of the data.

    Each rank predicts a range of consecutive batches, and then receives the predictions of all
    ranks. The batches are those of `model.predict(x)` in one process, and so is the result: the
    bits are equal if the model computes the same bits for the same batch every time.

    All ranks must call it with the same data and the same weights, as they have after `fit`. Do
    not pass data that `split_data` has split. The result is held in memory on every rank.

    Args:
        model: A Keras model.
        x: The whole data, the same on all ranks: arrays (or lists, tuples and dicts of them), a
            `tf.data.Dataset` of batches whose cardinality is known, a `keras.utils.PyDataset`, or a
            PyTorch `DataLoader` that does not shuffle.
        batch_size: Positive integer. The number of samples in a batch of arrays. Datasets and
            loaders have batches already. Defaults to 32.
        verbose: `"auto"`, 0, 1 or 2, as in `model.predict`. Only rank 0 shows progress.
        steps: Positive integer. The number of batches to predict, over all ranks. Defaults to
            `None`: all of them.

    Returns:
        What `model.predict` returns in one process: an array of shape `(samples, ...)`, or a
        structure of such arrays. Equal on all ranks.

    Raises:
        TypeError: If the model is none of Keras 3, the data are of another kind, or the model
            returns something other than arrays.
        ValueError: If an argument is wrong, if there are no samples, or if the number or the order
            of the batches is not known.
        RuntimeError: On all ranks, if they pass different numbers of batches or other arguments,
            if their weights differ, or if the prediction fails on another rank.

    Example:
    ```python
    probabilities = ddl.predict(model, x_test)
    if ddl.is_root():
        print(probabilities.argmax(axis=1))
    ```
    """
    if world.size() == 1:
        return model.predict(x, batch_size=batch_size, verbose=verbose, steps=steps)
    text = f"predict(batch_size={batch_size!r}, steps={steps!r})"
    context.require_all_ranks("predict()")
    with world.failing_alike(text):
        validators.instance_of_keras_3("model", model, keras.Model, "keras.Sequential([...])")
        count, batch_size = _count_batches(x, batch_size, steps)
    world.agree(f"{text} of {count} batches")
    with context.Call("predict()"):
        replicas.check_predictions(model, "before predict()")
    with world.failing_alike(text), world.activity("predict()"):
        outputs = _predict_range(model, x, batch_size, count, verbose)
    world.agree(f"the end of {text}")
    with context.Call("predict()"):
        return _gather(outputs)


def _count_batches(x, batch_size, steps):
    """Returns the number of batches that all ranks predict together, and the size of a batch."""
    for name, value in (("batch_size", batch_size), ("steps", steps)):
        if value is not None:
            validators.positive_integer(name, value)
    count = batch_range.count_batches(x, batch_size or 1)
    if count == 0:
        raise ValueError("`predict` needs at least one sample. Received: no samples")
    if batch_size is None:  # as Keras does
        batch_size = 32 if steps is None else -(-count // steps)
        count = batch_range.count_batches(x, batch_size)
    return count if steps is None else min(count, steps), batch_size


def _predict_range(model, x, batch_size, count, verbose):
    """Returns this rank's predictions; `None` if it has no batch."""
    rank, size = world.rank(), world.size()
    least, more = divmod(count, size)  # the first `more` ranks take one batch more
    start = rank * least + min(rank, more)
    stop = start + least + (rank < more)
    if start == stop:
        return None
    mine = batch_range.take_batches(x, start, stop, batch_size)
    outputs = model.predict(mine, batch_size=batch_size, verbose=verbose if rank == 0 else 0)
    for leaf in keras.tree.flatten(outputs):
        if not isinstance(leaf, np.ndarray):
            raise TypeError(
                "`predict` collects arrays. Call `model.predict` on each rank's own data instead. "
                f"Received: a model that returns {type(leaf).__name__}"
            )
    return outputs


def _gather(outputs):
    """Concatenates the predictions of all ranks."""
    # A rank without batches does not know what the model returns. Rank 0 has a batch.
    empty = None
    if world.is_root():
        empty = keras.tree.map_structure(lambda leaf: leaf[:0], outputs)
    empty = objects.broadcast_object(empty)
    mine = empty if outputs is None else outputs
    return keras.tree.map_structure(arrays.allgather, mine)
