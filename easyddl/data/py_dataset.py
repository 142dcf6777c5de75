"""`keras.utils.PyDataset`, whose batches are dealt out."""

from easyddl.data.epoch_order import EpochOrder


def split(dataset, part):
    """This rank's batches of a dataset, as a dataset."""
    count = dataset.num_batches
    if count is None:
        part.refuse_shuffle("`split_data` cannot shuffle batches that never end.")
    else:
        part.check(count, "batch")
    return DealtBatches(dataset, part)


class DealtBatches(EpochOrder):
    """One rank's batches of another dataset.

    Args:
        dataset: A `keras.utils.PyDataset`.
        part: The `Part` of its batches.
    """

    def __init__(self, dataset, part):
        super().__init__(
            part,
            workers=dataset.workers,
            use_multiprocessing=dataset.use_multiprocessing,
            max_queue_size=dataset.max_queue_size,
        )
        self.dataset = dataset
        self._reorder()

    def __getitem__(self, index):
        if self._places is None:
            return self.dataset[self.part.rank + index * self.part.size]
        return self.dataset[self._places[index]]

    def on_epoch_begin(self):
        super().on_epoch_begin()
        self.dataset.on_epoch_begin()

    def on_epoch_end(self):
        self.dataset.on_epoch_end()
        self._reorder()  # the dataset may have another number of batches now

    def _count_batches(self):
        count = self.dataset.num_batches
        return None if count is None else self.part.length(count)

    def _reorder(self):
        self._places = None
        if self.part.shuffle:
            # Plain integers are what a dataset expects of an index.
            self._places = self.part.rows(self.dataset.num_batches, self.epoch).tolist()
