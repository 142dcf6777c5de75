"""Which samples a rank takes, and in which order."""

import dataclasses

import numpy as np

from easyddl.runtime import console

EPOCH = "epoch"


@dataclasses.dataclass(frozen=True)
class Part:
    """One rank's part of any number of samples, batches or elements.

    Of `size` ranks, rank `r` takes the `r`-th of every `size`, after a permutation if there is
    one. So what all ranks take together is what one process would take, in the same order.

    It holds plain values, so that it can be sent to data workers.

    Attributes:
        rank: Integer.
        size: Integer. The number of ranks.
        shuffle: `False`; `True` for one permutation; `"epoch"` for another one in each epoch.
        seed: Integer. Seed of the permutations.
        remainder: `"drop"` or `"keep"`.
    """

    rank: int
    size: int
    shuffle: bool | str = False
    seed: int = 0
    remainder: str = "drop"

    @property
    def is_equal(self):
        """Whether all ranks take equally many."""
        return self.remainder == "drop"

    def kept(self, count):
        """How many of `count` the ranks take together."""
        return count - count % self.size if self.is_equal else count

    def length(self, count):
        """How many of `count` this rank takes."""
        return len(range(self.rank, self.kept(count), self.size))

    def rows(self, count, epoch=0):
        """The places of those that this rank takes: a slice, or an array of indices.

        It depends on the arguments alone, so that all ranks know one another's, and a training
        that goes on later finds the order of each epoch again.
        """
        mine = slice(self.rank, self.kept(count), self.size)
        if not self.shuffle:
            return mine
        seed = [self.seed, epoch] if self.shuffle == EPOCH else self.seed
        return np.random.default_rng(seed).permutation(count)[mine]

    def check(self, count, what, hint=""):
        """Raises an error if there are not enough, and tells what is left out.

        Args:
            count: Integer.
            what: What is counted, in the singular.
            hint: What to say besides.
        """
        # A rank may be without any batch: it joins those that have one. Arrays must not be empty.
        if count < self.size and (self.is_equal or what == "sample"):
            raise ValueError(
                f"There must be at least one {what} for each rank. Start fewer ranks or pass "
                f"more data.{hint} Received: {count} {what}(s) for {self.size} rank(s)"
            )
        left_out = count - self.kept(count)
        if left_out and self.rank == 0:
            console.say(
                f"split_data left out {left_out} of {count} {_plural(what)}, so that each of the "
                f"{self.size} ranks gets {count // self.size}. "
                'Pass remainder="keep" to keep them.'
            )

    def refuse_shuffle(self, advice):
        """Raises an error if a permutation is asked for, where there can be none."""
        if self.shuffle:
            raise ValueError(f"{advice} Received: shuffle={self.shuffle!r}")


def _plural(what):
    return f"{what}es" if what.endswith("ch") else f"{what}s"
