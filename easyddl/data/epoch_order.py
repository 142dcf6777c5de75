"""Data that Keras reads batch by batch, in an order that depends on the epoch."""

import copy

import keras


class EpochOrder(keras.utils.PyDataset):
    """Base of the datasets whose order depends on the epoch.

    `DDLCallback` calls `set_epoch` at the beginning of each epoch. Without it the epochs are
    counted as Keras begins them.

    Attributes:
        part: The `Part` that this rank takes.
        epoch: Integer. The epoch whose order is taken.
    """

    def __init__(self, part, **kwargs):
        super().__init__(**kwargs)
        self.part = part
        self.epoch = 0
        self._is_fresh = True  # Keras has not begun this epoch yet
        self._most = None

    @property
    def num_batches(self):
        """The number of this rank's batches in an epoch; `None` if they never end."""
        count = self._count_batches()
        return count if self._most is None else min(count, self._most)

    def __len__(self):
        return self.num_batches

    def set_epoch(self, epoch):
        """Has the next pass over the data take the order of an epoch.

        Args:
            epoch: Integer, from 0.
        """
        self.epoch = epoch
        self._is_fresh = True
        self._reorder()

    def first(self, steps):
        """The same data, of which an epoch takes the first few batches only."""
        less = copy.copy(self)
        less._most = steps
        return less

    def on_epoch_begin(self):
        if not self._is_fresh:
            self.set_epoch(self.epoch + 1)
        self._is_fresh = False

    def _count_batches(self):
        raise NotImplementedError

    def _reorder(self):
        """Called when the epoch has changed."""
        raise NotImplementedError
