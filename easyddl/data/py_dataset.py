"""Splits a `keras.utils.PyDataset` by batches."""

import sys

import keras

from easyddl.data import global_random, summary
from easyddl.data.epoch_order import EpochOrder


def split(dataset, shard):
    """Returns a dataset of this rank's batches of a dataset."""
    count = dataset.num_batches
    if count is None:
        shard.refuse_shuffle("`split_data` cannot shuffle batches that never end.")
    else:
        shard.check(count, "batch")
    return ShardedBatches(dataset, shard)


class ShardedBatches(EpochOrder):
    """One rank's batches of another dataset.

    Args:
        dataset: A `keras.utils.PyDataset`.
        shard: The `Shard` of its batches.
    """

    def __init__(self, dataset, shard):
        super().__init__(shard, **_workers_of(dataset))
        self.dataset = dataset
        self._reorder()

    def __getitem__(self, index):
        return self.dataset[self._places[index]]

    def on_epoch_begin(self):
        super().on_epoch_begin()
        with global_random.common():  # it may shuffle its samples
            self.dataset.on_epoch_begin()

    def on_epoch_end(self):
        with global_random.common():
            self.dataset.on_epoch_end()
        self._reorder()  # the dataset may now have another number of batches

    def _count_items(self):
        return self.dataset.num_batches

    def _reorder(self):
        if self.shard.shuffle:
            # A dataset expects plain integers as indices.
            self._places = self.shard.rows(self.dataset.num_batches, self.epoch).tolist()
        else:
            self._places = self.shard.positions(sys.maxsize, self.epoch)


def _workers_of(dataset):
    """Returns the arguments of a dataset that say which processes or threads read it."""
    names = ("workers", "use_multiprocessing", "max_queue_size")
    return {name: getattr(dataset, name) for name in names}


def attributes_of(dataset):
    """Returns the arrays that a dataset holds in its attributes, by name."""
    return summary.arrays_in_attributes(dataset, dataset.num_batches or 2)


def count_batches(dataset):
    """Returns the number of batches of a dataset, which must be finite."""
    count = dataset.num_batches
    if count is None:
        raise ValueError(
            "`predict` needs a finite number of batches. "
            "Received: a PyDataset whose `num_batches` is None"
        )
    return count


def take_batches(dataset, start, stop):
    """Returns a dataset of the batches from `start` up to `stop` of another dataset."""
    return _BatchRange(dataset, start, stop)


class _BatchRange(keras.utils.PyDataset):
    """The batches of another dataset from `start` up to `stop`."""

    def __init__(self, dataset, start, stop):
        super().__init__(**_workers_of(dataset))
        self.dataset = dataset
        self.places = range(start, stop)

    def __len__(self):
        return len(self.places)

    def __getitem__(self, index):
        return self.dataset[self.places[index]]
