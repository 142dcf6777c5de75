"""The iterator over the data of a fit, and the adapter that it draws batches from."""

import itertools
import queue

from easyddl.compat.names import Name, version

_ITERATOR = "keras.src.trainers.epoch_iterator.EpochIterator"
_ADAPTERS = "keras.src.trainers.data_adapters.py_dataset_adapter"

NAMES = (
    Name(
        _ITERATOR,
        "data_adapter",
        "a PyDataset cannot end an epoch early",
        is_set=True,
    ),
    Name(
        _ITERATOR,
        "steps_per_epoch",
        "a PyDataset cannot end an epoch early",
        is_set=True,
    ),
    Name(
        _ITERATOR,
        "enumerate_epoch",
        "an unbuilt model fails on a rank without a batch",
    ),
    Name(
        f"{_ADAPTERS}.PyDatasetAdapter",
        "py_dataset",
        "building a model takes the first batch of a PyDataset from its first epoch",
        is_set=True,
    ),
    Name(
        f"{_ADAPTERS}.PyDatasetAdapter",
        "_standardize_batch",
        "building a model takes the first batch of a PyDataset from its first epoch",
        takes=("batch",),
    ),
    Name(
        f"{_ADAPTERS}.PyDatasetAdapter",
        "_within_epoch",
        "a fit that goes on after a PyDataset's epoch was cut short fails",
        since=(3, 7),
        is_set=True,
    ),
    Name(
        f"{_ADAPTERS}.PyDatasetAdapter",
        "enqueuer",
        "a PyDataset's next epoch begins with what its workers have read ahead",
        is_set=True,
    ),
    Name(
        f"{_ADAPTERS}.PyDatasetEnqueuer",
        "ready_queue",
        "a PyDataset's next epoch begins with what its workers have read ahead",
        since=(3, 6),
        is_set=True,
    ),
)


class NoBatch(Exception):
    """The data hold no batch."""


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
        # Drawn from its workers, that batch would be missing from the first epoch, and all later
        # ones would begin with what they have read ahead: each rank with another number of batches.
        return adapter._standardize_batch(dataset[0])
    for batch in batches_of_epoch(iterator, 1):
        return batch
    raise NoBatch


def batches_of_epoch(iterator, steps_per_execution):
    """Yields the batches of an epoch, of which an epoch iterator hands out several in each step."""
    # Without `iter` before Keras 3.7.
    steps = iter(iterator) if hasattr(iterator, "__iter__") else iterator.enumerate_epoch()
    for *_, data in steps:
        # An iterator or a list, by the backend and Keras's version. The steps of an iterator whose
        # batches have run out never end by themselves.
        has_batch = False
        for batch in itertools.islice(data, steps_per_execution):
            has_batch = True
            yield batch
        if not has_batch:
            return


class OneBatch:
    """Stands in for an epoch iterator where Keras builds a model by the first batch.

    Args:
        draw: Function that returns the batch. It is called only if Keras needs it.
    """

    def __init__(self, draw):
        self._draw = draw
        self.data_adapter = self  # which Keras 3.16 asks on JAX

    def __iter__(self):
        steps = (0, 0) if version() >= (3, 11) else (0,)
        yield (*steps, [self._draw()])

    enumerate_epoch = __iter__  # which Keras before 3.7 calls

    def get_jax_iterator(self):
        """The batches, of which Keras takes the first."""
        yield self._draw()


def end_epoch(iterator):
    """Ends an epoch in the middle of which Keras has left a `PyDataset`.

    Keras does so where training stops, and does not expect another epoch then. Nothing happens
    with other data, or after an epoch that has ended.
    """
    adapter = iterator.data_adapter
    if not getattr(adapter, "_within_epoch", False):
        return
    adapter.on_epoch_end()
    # With a number of steps an epoch, the next one goes on where this one was.
    if adapter.enqueuer is not None and iterator.steps_per_epoch is None:
        _drop(adapter.enqueuer.ready_queue)


def _drop(batches):
    """Drops what workers have read ahead, with which Keras would begin the next epoch."""
    while True:
        try:
            batches.get_nowait()
        except queue.Empty:
            return
