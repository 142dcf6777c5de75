"""Grain's datasets and loaders."""

import dataclasses

import grain

from easyddl.data import iterators


def split(dataset, part):
    """This rank's elements of a dataset, as one of the same kind."""
    part.refuse_shuffle(
        "Shuffle Grain's data by Grain itself, with the same `seed` on all ranks, before they are "
        "split."
    )
    if part.size == 1:
        return dataset
    if isinstance(dataset, grain.MapDataset):
        part.check(len(dataset), "element")
        return dataset[part.rows(len(dataset))]
    if isinstance(dataset, grain.IterDataset):
        return _DealtDataset(dataset, part)
    return _loader(dataset, part)


class _DealtDataset(grain.IterDataset):
    def __init__(self, dataset, part):
        super().__init__(dataset)
        self._part = part

    def __iter__(self):
        return _DealtIterator(iter(self._parent), self._part)


class _DealtIterator(grain.DatasetIterator):
    """Has no state but that of its parent, as it stands between two elements of this rank."""

    def __init__(self, parent, part):
        super().__init__(parent)
        self._part = part
        self._dealt = iterators.dealt(parent, part)

    def __next__(self):
        return next(self._dealt)

    def get_state(self):
        return self._parent.get_state()

    def set_state(self, state):
        self._parent.set_state(state)
        self._dealt = iterators.dealt(self._parent, self._part)


def _loader(loader, part):
    if loader._shard_options.shard_count > 1:
        raise ValueError(
            "This Grain `DataLoader` is split already: give it `grain.sharding.NoSharding()`. "
            f"Received: a DataLoader with {loader._shard_options}"
        )
    options = loader.multiprocessing_options
    return grain.DataLoader(
        data_source=loader._data_source,
        sampler=_RankSampler(loader._sampler, part),
        operations=loader._operations,
        worker_count=options.num_workers,
        worker_buffer_size=options.per_worker_buffer_size,
        shard_options=grain.sharding.NoSharding(),
        read_options=loader._read_options,
        enable_profiling=options.enable_profiling,
    )


class _RankSampler:
    """One rank's part of what another sampler draws."""

    def __init__(self, sampler, part):
        part.check(len(sampler), "sample")
        self._sampler = sampler
        self._part = part

    def __len__(self):
        return self._part.length(len(self._sampler))

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(f"Index {index} of {len(self)} samples")
        drawn = self._sampler[self._part.rank + index * self._part.size]
        return dataclasses.replace(drawn, index=index)  # by which Grain tells how far it is
