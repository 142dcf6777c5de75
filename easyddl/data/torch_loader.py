"""Splits a PyTorch `DataLoader` with a sampler that takes one rank's shard."""

import contextlib
import functools
import random

import numpy as np
import torch
from torch.utils import data

from easyddl.data import iterators, summary

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

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def split(loader, shard):
    """Returns a loader of this rank's samples, or of its batches if samples cannot be split."""
    shard.refuse_shuffle(
        "A `DataLoader` shuffles with its own sampler. Pass `DataLoader(..., shuffle=True)`: "
        "with `split_data` it then draws a new order over all ranks in every epoch."
    )
    drawn_by = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    if any(isinstance(each, data.DistributedSampler) for each in _samplers_in(drawn_by)):
        raise ValueError(
            "This `DataLoader` is already split: leave out its `DistributedSampler`. "
            "Received: a DataLoader with a sampler of type DistributedSampler"
        )
    if shard.size == 1:
        return loader
    if type(loader).__iter__ is not data.DataLoader.__iter__:
        raise TypeError(
            "`split_data` makes another `DataLoader`, which does not do what an `__iter__` of your "
            "own does to the batches. Do it in the dataset or in `collate_fn`. "
            f"Received: a DataLoader of type {type(loader).__name__}"
        )
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
    the seed and the epoch: those of PyTorch, NumPy and Python, and of generators in its attributes.
    `DDLCallback` calls `set_epoch` at the beginning of each epoch. Without
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

    @property
    def items(self):
        """The number of items of all ranks, which the shard divides."""
        return len(self.sampler)

    def set_epoch(self, epoch):
        """Sets the epoch that determines the order of the next pass over the data."""
        self.epoch = epoch

    def __len__(self):
        return self.shard.length(len(self.sampler), self.epoch)

    def __iter__(self):
        with self._seeded():
            drawn = list(self.sampler)
        mine = self.shard.rows(len(drawn), self.epoch)
        self.epoch += 1
        return iter(drawn[mine])

    @contextlib.contextmanager
    def _seeded(self):
        """Seeds the generators that the sampler may use, and restores their states afterwards."""
        seed = np.random.SeedSequence([self.shard.seed, self.epoch]).generate_state(1)[0]
        with contextlib.ExitStack() as undo:
            for generator in _generators_of(self.sampler):
                undo.enter_context(_seeded_generator(generator, int(seed)))
            yield


def _generators_of(sampler):
    """Returns the global generators, and those in attributes of a sampler and its samplers."""
    found = [torch.default_generator, np.random, random]
    for each in _samplers_in(sampler):
        found += [value for value in _values_of(each) if isinstance(value, _GENERATORS)]
    return list({id(each): each for each in found}.values())


def _samplers_in(sampler):
    """Returns a sampler and those in its attributes."""
    found = [sampler]
    for each in found:  # grows
        values = _values_of(each)
        found += [v for v in values if isinstance(v, data.Sampler) and v not in found]
    return found


def _values_of(sampler):
    return list(getattr(sampler, "__dict__", {}).values())


@contextlib.contextmanager
def _seeded_generator(generator, seed):
    if isinstance(generator, torch.Generator):
        before = generator.get_state()
        generator.manual_seed(seed)
        restore = generator.set_state
    elif isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        before, bits.state = bits.state, type(bits)(seed).state
        restore = functools.partial(setattr, bits, "state")
    elif generator is np.random or isinstance(generator, np.random.RandomState):
        before = generator.get_state()
        generator.seed(seed)
        restore = generator.set_state
    else:
        before = generator.getstate()
        generator.seed(seed)
        restore = generator.setstate
    try:
        yield
    finally:
        restore(before)


class _ShardedBatches(data.IterableDataset):
    """One rank's batches of a loader of an `IterableDataset`."""

    def __init__(self, loader, shard):
        self.loader = loader
        self.shard = shard

    def __iter__(self):
        return iterators.sharded(self.loader, self.shard)


def arrays_in(loader):
    """Returns the arrays that the dataset of a loader holds, by name.

    `torch.utils.data.random_split`, for example, makes datasets that hold indices.
    """
    found, dataset = {}, loader.dataset
    while isinstance(dataset, data.Subset):
        found[f"its indices {len(found)}"] = list(dataset.indices)
        dataset = dataset.dataset
    if isinstance(dataset, data.TensorDataset):
        found |= {f"its tensor {i}": each for i, each in enumerate(dataset.tensors)}
    return found


def attributes_of(loader):
    """Returns the arrays in attributes of the user's own dataset in a loader, by name."""
    dataset = loader.dataset
    while isinstance(dataset, data.Subset):
        dataset = dataset.dataset
    if isinstance(dataset, data.TensorDataset) or not hasattr(dataset, "__len__"):
        return {}
    return summary.arrays_in_attributes(dataset, len(dataset))


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
