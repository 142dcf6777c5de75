"""The base of datasets whose order depends on the epoch."""

import copy
import itertools

import keras


class EpochOrder(keras.utils.PyDataset):
    """Base class of datasets whose order depends on the epoch.

    `DDLCallback` calls `set_epoch` at the beginning of each epoch. Without `DDLCallback` the
    dataset counts the epochs that Keras begins.

    Attributes:
        shard: The `Shard` of this rank.
        epoch: Integer. The epoch that determines the order.
        items_per_step: Integer. The number of this rank's items in a step.
    """

    items_per_step = 1

    def __init__(self, shard, **kwargs):
        super().__init__(**kwargs)
        self.shard = shard
        self.epoch = 0
        self._is_fresh = True  # Keras has not begun this epoch yet
        self._most = None  # the largest number of batches in an epoch, if it is limited

    @property
    def num_batches(self):
        """The number of this rank's batches in an epoch; `None` if the data are infinite."""
        items = self._count_items()
        if items is None:
            return None
        count = -(-self.shard.length(items, self.epoch) // self.items_per_step)
        return count if self._most is None else min(count, self._most)

    def __len__(self):
        return self.num_batches

    def __iter__(self):
        # That of Keras 3.5 does not end.
        count = self.num_batches
        for index in itertools.count() if count is None else range(count):
            yield self[index]

    def set_epoch(self, epoch):
        """Sets the epoch that determines the order of the next pass over the data.

        Args:
            epoch: Integer, from 0.
        """
        self.epoch = epoch
        self._is_fresh = True
        self._reorder()

    def first(self, steps):
        """Returns a copy whose epochs contain only the first `steps` batches."""
        less = copy.copy(self)
        less._most = steps
        return less

    def on_epoch_begin(self):
        if not self._is_fresh:
            self.set_epoch(self.epoch + 1)
        self._is_fresh = False

    @property
    def items(self):
        """The number of items that the shard divides; `None` if an epoch does not end with them."""
        return self._count_items() if self._most is None else None

    def _count_items(self):
        """Returns the number of items that the shard divides; `None` if they never end."""
        raise NotImplementedError

    def _reorder(self):
        """Computes a new order. Called when the epoch has changed."""
        raise NotImplementedError
