"""Splits Grain's datasets and loaders."""

import dataclasses

import grain

from easyddl.data import iterators, shuffle_seeds

_SHUFFLES = ("ShuffleMapDataset", "WindowShuffleMapDataset", "WindowShuffleIterDataset")


def split(dataset, shard):
    """Returns this rank's elements of a dataset or a loader, as an object of the same kind."""
    shard.refuse_shuffle(
        "Shuffle Grain's data with Grain itself, with the same `seed` on all ranks, before you "
        "split them."
    )
    if shard.size == 1:
        return dataset
    if isinstance(dataset, grain.MapDataset):
        shard.check(len(dataset), "element")
        return dataset[shard.rows(len(dataset))]
    if isinstance(dataset, grain.IterDataset):
        return _ShardedDataset(dataset, shard)
    return _loader(dataset, shard)


def check_order(dataset):
    """Raises an error on all ranks if they shuffled a dataset with different seeds. Collective."""
    shuffle_seeds.compared(lambda: _seeds_of(dataset))


def _seeds_of(dataset):
    """Returns a list of the seeds with which a dataset and those inside of it are shuffled."""
    own = [dataset._seed] if type(dataset).__name__ in _SHUFFLES else []
    return own + [each for inner in getattr(dataset, "_parents", ()) for each in _seeds_of(inner)]


class _ShardedDataset(grain.IterDataset):
    def __init__(self, dataset, shard):
        super().__init__(dataset)
        self._shard = shard

    def __iter__(self):
        return _ShardedIterator(iter(self._parent), self._shard)


class _ShardedIterator(grain.DatasetIterator):
    """Iterates over one rank's elements.

    Its only state is the state of the parent iterator between two elements of this rank.
    """

    def __init__(self, parent, shard):
        super().__init__(parent)
        self._shard = shard
        self._sharded = iterators.sharded(parent, shard)

    def __next__(self):
        return next(self._sharded)

    def get_state(self):
        return self._parent.get_state()

    def set_state(self, state):
        self._parent.set_state(state)
        self._sharded = iterators.sharded(self._parent, self._shard)


def _loader(loader, shard):
    if loader._shard_options.shard_count > 1:
        raise ValueError(
            "This Grain `DataLoader` is already split: pass `grain.sharding.NoSharding()` to it. "
            f"Received: a DataLoader with {loader._shard_options}"
        )
    options = loader.multiprocessing_options
    return grain.DataLoader(
        data_source=loader._data_source,
        sampler=_RankSampler(loader._sampler, shard),
        operations=loader._operations,
        worker_count=options.num_workers,
        worker_buffer_size=options.per_worker_buffer_size,
        shard_options=grain.sharding.NoSharding(),
        read_options=loader._read_options,
        enable_profiling=options.enable_profiling,
    )


class _RankSampler:
    """One rank's shard of the samples that another sampler draws."""

    def __init__(self, sampler, shard):
        shard.check(len(sampler), "sample")
        self._sampler = sampler
        self._shard = shard

    def __len__(self):
        return self._shard.length(len(self._sampler))

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(f"Index {index} of {len(self)} samples")
        drawn = self._sampler[self._shard.rank + index * self._shard.size]
        return dataclasses.replace(drawn, index=index)  # Grain stores its position by this index
