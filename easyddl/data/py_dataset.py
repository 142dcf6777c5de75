"""Splits a `keras.utils.PyDataset` by batches."""

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
        super().__init__(
            shard,
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self.dataset = dataset
        self._reorder()

    def __getitem__(self, index):
        if self._places is None:
            return self.dataset[self.shard.rank + index * self.shard.size]
        return self.dataset[self._places[index]]

    def on_epoch_begin(self):
        super().on_epoch_begin()
        self.dataset.on_epoch_begin()

    def on_epoch_end(self):
        self.dataset.on_epoch_end()
        self._reorder()  # the dataset may now have another number of batches

    def _count_batches(self):
        count = self.dataset.num_batches
        return None if count is None else self.shard.length(count)

    def _reorder(self):
        self._places = None
        if self.shard.shuffle:
            # A dataset expects plain integers as indices.
            self._places = self.shard.rows(self.dataset.num_batches, self.epoch).tolist()
