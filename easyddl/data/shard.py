"""`Shard`: which samples a rank takes, and in which order."""

import dataclasses

import numpy as np

from easyddl.runtime import console

EPOCH = "epoch"

_PLURALS = {
    "batch": "batches",
    "element": "elements (batches, if the dataset is batched)",
    "sample": "samples",
}


@dataclasses.dataclass(frozen=True)
class Shard:
    """One rank's shard of any number of samples, batches or elements.

    With `size` ranks, rank `r` takes the `r`-th of every `size` items, after an optional
    permutation. So all ranks together take the items of one process, in the same order.

    The fields are plain values, so that a shard can be pickled for data workers.

    Attributes:
        rank: Integer. The number of the rank.
        size: Integer. The number of ranks.
        shuffle: `False`; `True` for one permutation; `"epoch"` for a new one in each epoch.
        seed: Integer. The seed of the permutations.
        remainder: `"drop"` or `"keep"`. Whether to drop the last items that do not divide evenly.
        taken: Pair of integers: an epoch that is resumed, and how many items at the start of its
            order another number of ranks has taken.
    """

    rank: int
    size: int
    shuffle: bool | str = False
    seed: int = 0
    remainder: str = "drop"
    taken: tuple = (0, 0)

    @property
    def is_equal(self):
        """Whether all ranks take the same number of items."""
        return self.remainder == "drop"

    def kept(self, count):
        """Returns how many of `count` items all ranks take together."""
        return count - count % self.size if self.is_equal else count

    def length(self, count, epoch=0):
        """Returns how many of `count` items this rank takes in an epoch."""
        return len(self.positions(count, epoch))

    def positions(self, count, epoch=0):
        """Returns this rank's positions in the order of all items in an epoch, as a range."""
        first = self.taken[1] if self.taken[0] == epoch else 0
        return range(first + (self.rank - first) % self.size, self.kept(count), self.size)

    def rows(self, count, epoch=0):
        """Returns the positions of this rank's items: a slice, or an array of indices.

        The result depends only on the fields and the arguments. Therefore the ranks' shards are
        disjoint, and a training that is resumed finds the same order for each epoch.

        Args:
            count: Integer. The number of items of all ranks.
            epoch: Integer. The number of the epoch, from 0.
        """
        mine = self.positions(count, epoch)
        mine = slice(mine.start, mine.stop, mine.step)
        if not self.shuffle:
            return mine
        seed = [self.seed, epoch] if self.shuffle == EPOCH else self.seed
        return np.random.default_rng(seed).permutation(count)[mine]

    def check(self, count, what):
        """Checks that there are enough items, and prints on rank 0 how many are dropped.

        Args:
            count: Integer. The number of items of all ranks.
            what: String. The name of an item: `"batch"`, `"element"` or `"sample"`.

        Raises:
            ValueError: If a rank would get no item, although each rank needs one.
        """
        # A rank without any batch can join the others, but a rank's arrays must not be empty.
        if count < self.size and (self.is_equal or what == "sample"):
            raise ValueError(
                f"There must be at least one {what} for each rank. Start fewer ranks or pass "
                f"more data. Received: {count} {what}(s) for {self.size} rank(s)"
            )
        left_out = count - self.kept(count)
        if left_out and self.rank == 0:
            console.say(
                f"split_data left out {left_out} of {count} {_PLURALS[what]}, so that each of the "
                f"{self.size} ranks gets {count // self.size}. "
                'Pass remainder="keep" to keep them.'
            )

    def refuse_shuffle(self, advice):
        """Raises a `ValueError` with `advice` if shuffling is requested."""
        if self.shuffle:
            raise ValueError(f"{advice} Received: shuffle={self.shuffle!r}")
