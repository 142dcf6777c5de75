"""The iterator over the data of a fit, and the adapter from which it draws batches."""

import contextlib
import copy
import itertools
import queue

import keras

from easyddl.compat import patches
from easyddl.compat.names import Name, several, version

_PARTIAL_LIST = Name(
    "keras.src.trainers.data_adapters.data_adapter_utils",
    "PartialBatchList",
    "with `steps_per_execution`, the batches that Keras executes together count as one",
    since=(3, 16),
    backend="jax",
)

_ITERATOR = "keras.src.trainers.epoch_iterator.EpochIterator"
_ADAPTER = "keras.src.trainers.data_adapters.py_dataset_adapter.PyDatasetAdapter"
_ENQUEUER = "keras.src.trainers.data_adapters.py_dataset_adapter.PyDatasetEnqueuer"

_CUT_SHORT = "a PyDataset cannot end an epoch early"
_BUILD = "building a model takes the first batch of a PyDataset from its first epoch"
_RESUMED = "other ranks cannot continue an epoch"
_PREFETCHED = "a PyDataset's next epoch begins with batches that its workers have prefetched"

NAMES = (
    _PARTIAL_LIST,
    *several(
        _ITERATOR, dict.fromkeys(("data_adapter", "steps_per_epoch"), _CUT_SHORT), is_set=True
    ),
    Name(
        "keras.src.trainers.data_adapters.data_adapter.DataAdapter",
        "get_jax_iterator",
        "an unbuilt model fails on JAX",
        since=(3, 16),
        backend="jax",
    ),
    Name(_ITERATOR, "_num_batches", _RESUMED, is_set=True),
    *several(
        "keras.src.backend.tensorflow.trainer.TFEpochIterator",
        dict.fromkeys(("_distributed_dataset", "_distribute_strategy"), _RESUMED),
        is_set=True,
        backend="tensorflow",
    ),
    Name(_ITERATOR, "enumerate_epoch", "an unbuilt model fails on a rank without a batch"),
    *several(_ADAPTER, {"py_dataset": _BUILD, "enqueuer": _PREFETCHED}, is_set=True),
    Name(_ADAPTER, "_standardize_batch(batch)", _BUILD),
    Name(_ADAPTER, "_within_epoch", _CUT_SHORT, since=(3, 7), is_set=True),
    Name(_ENQUEUER, "ready_queue", _PREFETCHED, since=(3, 6), is_set=True),
)


class NoBatch(Exception):
    """Raised if the data contain no batch."""


class Item:
    """An item of an epoch iterator: one batch, or all batches of an execution.

    The item is one batch, except on JAX with Keras 3.16 or later and `steps_per_execution` above 1.
    There it is a super-batch: the batches are stacked along an additional first axis. If batches
    cannot be stacked, or are the last ones of an epoch, the item is a list of batches.

    Args:
        content: The object that the iterator yielded.
        steps_per_execution: Integer. The setting of the model.
    """

    def __init__(self, content, steps_per_execution):
        self._is_stacked = False
        self._batches = [content]
        if steps_per_execution > 1 and _PARTIAL_LIST.is_expected():
            self._is_stacked = not isinstance(content, _PARTIAL_LIST.get())
            self._batches = [content] if self._is_stacked else content

    def __len__(self):
        """Returns the number of batches, each of which is a step."""
        if not self._is_stacked:
            return len(self._batches)
        # Keras itself uses the length of the first array.
        return keras.tree.flatten(self._batches[0])[0].shape[0]

    def structures(self, make):
        """Returns the structure of each batch, without slicing any array.

        Args:
            make: Function of the shape and the dtype of an array in one batch.

        Returns:
            List of nested structures, one for each batch. Their leaves are results of `make`;
            `None` remains `None`.
        """
        axes = int(self._is_stacked)

        def leaf(x):
            return None if x is None else make(x.shape[axes:], x.dtype)

        made = [keras.tree.map_structure(leaf, batch) for batch in self._batches]
        return made * len(self) if self._is_stacked else made


def first_batch(iterator):
    """Draws the first batch of an epoch iterator.

    Raises:
        NoBatch: If there is none.
    """
    adapter = getattr(iterator, "data_adapter", None)
    dataset = getattr(adapter, "py_dataset", None)
    if dataset is not None:
        if dataset.num_batches == 0:
            raise NoBatch
        # If the workers loaded this batch, the first epoch would lack it. Later epochs would begin
        # with batches that the workers have prefetched, of which each rank has another number.
        return adapter._standardize_batch(dataset[0])
    if _PARTIAL_LIST.is_expected():
        # The iterator may yield super-batches. Keras also builds from the adapter's batches.
        batches = iter(adapter.get_jax_iterator())
    else:
        batches = items_of_epoch(iterator, 1)
    for batch in batches:
        return batch
    raise NoBatch


def items_of_epoch(iterator, steps_per_execution):
    """Yields the items of an epoch iterator in one epoch, as contents of an `Item`."""
    # Keras draws a super-batch as one item, and other batches one by one.
    most = 1 if _PARTIAL_LIST.is_expected() else steps_per_execution
    # Before Keras 3.7 the iterator has no `__iter__`.
    steps = iter(iterator) if hasattr(iterator, "__iter__") else iterator.enumerate_epoch()
    for *_, data in steps:
        # `data` is an iterator or a list, depending on the backend and Keras's version. If it is an
        # iterator, the steps do not end by themselves when the batches have run out.
        has_item = False
        for item in itertools.islice(data, most):
            has_item = True
            yield item
        if not has_item:
            return


def skip_execution(data, steps_per_execution, most):
    """Drops the batches of one execution from the data that Keras passes to a train function.

    Args:
        data: Iterator of an epoch's items, or the list of the items of an execution.
        steps_per_execution: Integer. The setting of the model.
        most: Integer. How many steps to skip at most, if the data are an iterator.

    Returns:
        Integer. The number of steps that were skipped.
    """
    if isinstance(data, list | tuple):
        return len(data)
    skipped = 0
    while skipped < min(most, steps_per_execution):
        skipped += len(Item(next(data), steps_per_execution))
    return skipped


class OneBatch:
    """A substitute for the epoch iterator, from whose first batch Keras builds a model.

    Args:
        draw: Function without arguments that returns the batch. It is called only if Keras needs
            the batch.
    """

    def __init__(self, draw):
        self._draw = draw
        self.data_adapter = self  # Keras 3.16 calls its `get_jax_iterator` on JAX

    def __iter__(self):
        steps = (0, 0) if version() >= (3, 11) else (0,)
        yield (*steps, [self._draw()])

    enumerate_epoch = __iter__  # called by Keras before 3.7

    def get_jax_iterator(self):
        """Yields the batch."""
        yield self._draw()


def shorten_epoch(iterator, batches, adapter=None):
    """Makes an epoch iterator expect fewer batches, until this is undone.

    Args:
        iterator: `EpochIterator`, between two epochs.
        batches: Integer. The number of batches of an epoch.
        adapter: The adapter from which to read them. Defaults to the iterator's own one.

    Returns:
        Function without arguments that undoes this.
    """
    values = {"_num_batches": batches}
    if not batches and hasattr(iterator.data_adapter, "enqueuer"):
        # The workers of a PyDataset would wait for a batch without end.
        adapter = copy.copy(iterator.data_adapter)
        adapter.enqueuer = None
    if adapter is not None:
        values["data_adapter"] = adapter
        if hasattr(iterator, "_distributed_dataset"):
            distribute = iterator._distribute_strategy.experimental_distribute_dataset
            values["_distributed_dataset"] = distribute(adapter.get_tf_dataset())
    return patches.replace_all(iterator, values)


def end_epoch(iterator):
    """Ends the epoch of a `PyDataset` that Keras stopped in the middle.

    Keras stops an epoch when training stops, and does not expect another epoch then. Does nothing
    for other data, or if the epoch has ended.
    """
    adapter = iterator.data_adapter
    if not getattr(adapter, "_within_epoch", False):
        return
    adapter.on_epoch_end()
    # With `steps_per_epoch`, the next epoch continues where this one stopped.
    if adapter.enqueuer is not None and iterator.steps_per_epoch is None:
        # Otherwise Keras would begin the next epoch with the batches that are prefetched.
        with contextlib.suppress(queue.Empty):
            while True:
                adapter.enqueuer.ready_queue.get_nowait()
