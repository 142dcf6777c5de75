"""PyTorch's `DataLoader`, made again with a sampler that takes one rank's part."""

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


def split(loader, part):
    """A loader of this rank's samples; of its batches where nothing else can be split."""
    part.refuse_shuffle(
        "A `DataLoader` shuffles by its own sampler. With `DataLoader(..., shuffle=True)` "
        "`split_data` gives a fresh order over all ranks in every epoch."
    )
    if isinstance(loader.sampler, data.DistributedSampler):
        raise ValueError(
            "This `DataLoader` is split already: give it no `DistributedSampler`. "
            "Received: a DataLoader with a sampler of type DistributedSampler"
        )
    if part.size == 1:
        return loader
    if isinstance(loader.dataset, data.IterableDataset):
        return data.DataLoader(_DealtBatches(loader, part), batch_size=None)
    kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    if loader.batch_size is None and loader.batch_sampler is not None:
        sampler = RankSampler(loader.batch_sampler, part, "batch")
        return data.DataLoader(loader.dataset, batch_sampler=sampler, **kept)
    return data.DataLoader(
        loader.dataset,
        batch_size=loader.batch_size,
        sampler=RankSampler(loader.sampler, part, "sample"),
        drop_last=loader.drop_last,
        **kept,
    )


class RankSampler(data.Sampler):
    """One rank's part of what another sampler draws.

    All ranks let it draw the same, from random numbers that depend on the seed and the epoch
    alone. `DDLCallback` calls `set_epoch` at the beginning of each epoch; without it the passes
    over the data are counted.

    Args:
        sampler: A sampler of samples or of batches, that has a length.
        part: The `Part` of what it draws.
        what: What it draws, in the singular.
    """

    def __init__(self, sampler, part, what):
        if not hasattr(sampler, "__len__"):
            raise TypeError(
                "The sampler of a `DataLoader` must have a length. "
                f"Received: a sampler of type {type(sampler).__name__}"
            )
        part.check(len(sampler), what)
        self.sampler = sampler
        self.part = part
        self.epoch = 0

    def set_epoch(self, epoch):
        """Has the next pass over the data take the order of an epoch."""
        self.epoch = epoch

    def __len__(self):
        return self.part.length(len(self.sampler))

    def __iter__(self):
        with self._seeded():
            drawn = list(self.sampler)
        self.epoch += 1
        return iter(drawn[self.part.rows(len(drawn))])

    @contextlib.contextmanager
    def _seeded(self):
        """Seeds what the sampler draws from, and leaves no trace of it."""
        seed = np.random.SeedSequence([self.part.seed, self.epoch]).generate_state(1)[0]
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


class _DealtBatches(data.IterableDataset):
    """One rank's batches of a loader whose dataset has no indices."""

    def __init__(self, loader, part):
        self.loader = loader
        self.part = part

    def __iter__(self):
        return iterators.dealt(self.loader, self.part)
