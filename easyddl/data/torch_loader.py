"""Splits a PyTorch `DataLoader` with a sampler that takes one rank's shard."""

import contextlib

import numpy as np
import torch
from torch.utils import data

from easyddl.data import iterators

_KEPT = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


def split(loader, shard):
    """Returns a loader of this rank's samples, or of its batches if samples cannot be split."""
    shard.refuse_shuffle(
        "A `DataLoader` shuffles with its own sampler. Pass `DataLoader(..., shuffle=True)`: "
        "with `split_data` it then draws a new order over all ranks in every epoch."
    )
    if isinstance(loader.sampler, data.DistributedSampler):
        raise ValueError(
            "This `DataLoader` is already split: leave out its `DistributedSampler`. "
            "Received: a DataLoader with a sampler of type DistributedSampler"
        )
    if shard.size == 1:
        return loader
    if isinstance(loader.dataset, data.IterableDataset):
        return data.DataLoader(_ShardedBatches(loader, shard), batch_size=None)
    kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    if loader.batch_size is None and loader.batch_sampler is not None:
        sampler = RankSampler(loader.batch_sampler, shard, "batch")
        return data.DataLoader(loader.dataset, batch_sampler=sampler, **kept)
    return data.DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=RankSampler(loader.sampler, shard, "sample"),
        drop_last=loader.drop_last,
        **kept,
    )


class RankSampler(data.Sampler):
    """One rank's shard of the indices that another sampler draws.

    The other sampler draws the same indices on all ranks, from random numbers that depend only on
    the seed and the epoch. `DDLCallback` calls `set_epoch` at the beginning of each epoch. Without
    `DDLCallback` the sampler counts the passes over the data.

    Args:
        sampler: A sampler of samples or of batches that has a length.
        shard: The `Shard` of this rank.
        what: String. The name of an item that the sampler draws, in the singular.

    Raises:
        TypeError: If `sampler` has no length.
        ValueError: If there are too few items for the number of ranks.
    """

    def __init__(self, sampler, shard, what):
        if not hasattr(sampler, "__len__"):
            raise TypeError(
                "The sampler of a `DataLoader` must have a length. "
                f"Received: a sampler of type {type(sampler).__name__}"
            )
        shard.check(len(sampler), what)
        self.sampler = sampler
        self.shard = shard
        self.epoch = 0

    def set_epoch(self, epoch):
        """Sets the epoch that determines the order of the next pass over the data."""
        self.epoch = epoch

    def __len__(self):
        return self.shard.length(len(self.sampler))

    def __iter__(self):
        with self._seeded():
            drawn = list(self.sampler)
        self.epoch += 1
        return iter(drawn[self.shard.rows(len(drawn))])

    @contextlib.contextmanager
    def _seeded(self):
        """Seeds the sampler's generators, and restores their states afterwards."""
        seed = np.random.SeedSequence([self.shard.seed, self.epoch]).generate_state(1)[0]
        own = getattr(self.sampler, "generator", None)
        generators = [torch.default_generator, *([] if own is None else [own])]
        states = [generator.get_state() for generator in generators]
        for generator in generators:
            generator.manual_seed(int(seed))
        try:
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)


class _ShardedBatches(data.IterableDataset):
    """One rank's batches of a loader of an `IterableDataset`."""

    def __init__(self, loader, shard):
        self.loader = loader
        self.shard = shard

    def __iter__(self):
        return iterators.sharded(self.loader, self.shard)


def count_batches(loader):
    """Returns the number of batches of a loader, whose order must be the same on all ranks."""
    if isinstance(loader.dataset, data.IterableDataset) or loader.batch_sampler is None:
        raise TypeError(
            "`predict` needs a `DataLoader` that can begin at any batch: one of a dataset with "
            "`__getitem__` and `__len__`, and with a `batch_size`. "
            f"Received: a DataLoader of {type(loader.dataset).__name__} "
            f"with batch_size={loader.batch_size}"
        )
    if isinstance(loader.sampler, data.RandomSampler):
        raise ValueError(
            "`predict` returns predictions in the order of the data, but a `DataLoader` that "
            "shuffles has no fixed order. Received: a DataLoader with shuffle=True"
        )
    return len(loader)


def take_batches(loader, start, stop):
    """Returns a loader of the batches from `start` up to `stop` of another loader."""
    kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    batches = list(loader.batch_sampler)[start:stop]
    return data.DataLoader(loader.dataset, batch_sampler=batches, **kept)
