"""What each rank gets of a PyTorch `DataLoader`."""

import multiprocessing
import random
import signal
import subprocess

import numpy as np
import pytest

from easyddl import split_data
from easyddl.data import set_epoch
from easyddl.runtime.termination import TerminationSignals

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402 - after the check that it is there

SIZES = [1, 2, 3]


def loader(samples=13, **options):
    return data.DataLoader(data.TensorDataset(torch.arange(samples)), **options)


def batches(part):
    return [batch[0].reshape(-1).tolist() for batch in part]


def flat(part):
    return [number for batch in batches(part) for number in batch]


@pytest.mark.parametrize("remainder", ["drop", "keep"])
@pytest.mark.parametrize("samples", [12, 13, 14])
@pytest.mark.parametrize("size", SIZES)
def test_each_rank_gets_every_kth_sample(split, size, samples, remainder):
    kept = samples - samples % size if remainder == "drop" and size > 1 else samples
    for rank, part in enumerate(split(size, loader(samples, batch_size=2), remainder=remainder)):
        want = list(range(rank, kept, size))
        assert batches(part) == [want[i : i + 2] for i in range(0, len(want), 2)]
        assert len(part) == -(-len(want) // 2)


@pytest.mark.parametrize(
    "options",
    [
        lambda: {"shuffle": True},
        lambda: {"shuffle": True, "generator": torch.Generator()},
        lambda: {"sampler": data.SubsetRandomSampler(range(13))},
    ],
)
def test_a_random_order_is_one_over_all_ranks_in_each_epoch(split, options):
    seeds = iter(range(100, 103))

    def on_another_host():
        torch.manual_seed(next(seeds))
        made = options()
        if "generator" in made:
            made["generator"].manual_seed(torch.initial_seed())
        return loader(13, batch_size=2, **made)

    parts = split(3, on_another_host, remainder="keep")
    seen = []
    for _ in range(3):
        each = [flat(part) for part in parts]
        assert sorted(map(len, each)) == [4, 4, 5]
        assert sorted(sum(each[1:], each[0])) == list(range(13))
        seen.append(each)
    assert seen[0] != seen[1] != seen[2]


class Choice(data.Sampler):
    """Draws by a function."""

    def __init__(self, draw, **generators):
        self.draw = draw
        self.__dict__.update(generators)

    def __len__(self):
        return 13

    def __iter__(self):
        return iter(self.draw(self))


@pytest.mark.parametrize(
    "made",
    [
        lambda: Choice(lambda self: np.random.permutation(13).tolist()),
        lambda: Choice(lambda self: random.sample(range(13), 13)),
        lambda: Choice(lambda s: s.own.permutation(13).tolist(), own=np.random.default_rng()),
        lambda: Choice(lambda s: s.own.permutation(13).tolist(), own=np.random.RandomState()),
        lambda: Choice(lambda self: self.own.sample(range(13), 13), own=random.Random()),
        lambda: Choice(lambda s: list(s.inner), inner=Choice(lambda s: np.random.permutation(13))),
    ],
)
def test_a_sampler_of_ones_own_draws_the_same_on_all_ranks(split, made):
    state = random.getstate(), np.random.get_state()[1].tolist()
    parts = split(3, lambda: loader(13, sampler=made()), remainder="keep")
    orders = [[number for part in parts for number in flat(part)] for _ in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(13))
    assert orders[0] != orders[1]
    assert state == (random.getstate(), np.random.get_state()[1].tolist())


def test_the_order_follows_from_seed_and_epoch(split):
    def order(seed, epoch):
        (_, part) = split(2, loader(40, shuffle=True), seed=seed)
        set_epoch.set_epochs(part, epoch)
        return flat(part)

    orders = {(seed, epoch): order(seed, epoch) for seed in (0, 1) for epoch in (0, 1, 2)}
    assert len({tuple(each) for each in orders.values()}) == 6
    assert orders == {key: order(*key) for key in orders}
    (_, part) = split(2, loader(40, shuffle=True))
    assert [flat(part) for _ in range(3)] == [orders[0, epoch] for epoch in range(3)]


def test_the_ranks_own_random_numbers_are_left_alone(at):
    at(0, 2)
    part = split_data(loader(shuffle=True))
    sampler = part.sampler
    before = torch.get_rng_state()
    list(sampler)
    assert torch.equal(torch.get_rng_state(), before)


def test_settings_are_kept(at):
    at(0, 2)
    generator = torch.Generator()
    given = loader(
        batch_size=3,
        drop_last=True,
        num_workers=2,
        collate_fn=list,
        timeout=5,
        worker_init_fn=print,
        generator=generator,
        prefetch_factor=3,
        persistent_workers=True,
        pin_memory=True,
    )
    part = split_data(given)
    names = "dataset batch_size drop_last num_workers collate_fn timeout worker_init_fn generator"
    more = "prefetch_factor persistent_workers pin_memory multiprocessing_context"
    for name in f"{names} {more}".split():
        assert getattr(part, name) == getattr(given, name), name


def test_with_workers(at):
    at(1, 2)
    assert flat(split_data(loader(8, num_workers=1))) == [1, 3, 5, 7]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_that_the_rank_records_ends_no_worker(number, at):
    at(0, 2)
    watched = TerminationSignals([number])
    forked = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": 60}
    given = iter(split_data(loader(64, **forked)))  # before the rank records signals
    first = next(given)
    watched.watch()
    try:
        for worker in multiprocessing.active_children():
            line = ["kill", f"-{number:d}", str(worker.pid)]  # as from a launcher
            subprocess.run(line, check=True, timeout=60)
        assert flat([first, *given]) == list(range(0, 64, 2))
    finally:
        watched.stop_watching()


def test_without_batches(at):
    at(1, 2)
    assert flat(split_data(loader(6, batch_size=None))) == [1, 3, 5]


def test_batches_of_a_batch_sampler_are_split_whole(split):
    given = loader(batch_sampler=[[0, 1], [2], [3, 4, 5], [6], [7, 8]])
    assert [batches(part) for part in split(2, given)] == [[[0, 1], [3, 4, 5]], [[2], [6]]]


class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(torch.arange(13)[:, None])


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_of_an_iterable_dataset_are_split_whole(split, workers):
    given = data.DataLoader(Stream(), batch_size=2, num_workers=workers)
    parts = split(3, given, remainder="keep")
    assert [[batch.reshape(-1).tolist() for batch in part] for part in parts] == [
        [[0, 1], [6, 7], [12]],
        [[2, 3], [8, 9]],
        [[4, 5], [10, 11]],
    ]


def test_a_world_of_one_gets_it_as_it_is(at):
    at(0, 1)
    given = loader(shuffle=True)
    assert split_data(given) is given


def test_what_is_split_already(at):
    at(0, 2)
    dataset = data.TensorDataset(torch.arange(4))
    sampler = data.DistributedSampler(dataset, num_replicas=2, rank=0)
    with pytest.raises(ValueError, match="DistributedSampler"):
        split_data(data.DataLoader(dataset, sampler=sampler))
    with pytest.raises(ValueError, match="DistributedSampler"):
        batches_of_it = data.BatchSampler(sampler, 2, drop_last=False)
        split_data(data.DataLoader(dataset, batch_sampler=batches_of_it))


def test_a_loader_that_changes_its_batches(at):
    class Scaled(data.DataLoader):
        def __iter__(self):
            return ([3 * x] for (x,) in super().__iter__())

    given = Scaled(data.TensorDataset(torch.arange(4)))
    at(0, 1)
    assert split_data(given) is given
    at(0, 2)
    with pytest.raises(TypeError, match="of type Scaled"):
        split_data(given)


def test_a_sampler_of_pytorchs_own_hears_of_the_epoch():
    dataset = data.TensorDataset(torch.arange(40))
    sampler = data.DistributedSampler(dataset, num_replicas=2, rank=0)
    given = data.DataLoader(dataset, sampler=sampler)
    orders = []
    for epoch in (0, 1, 0):
        set_epoch.set_epochs(given, epoch)
        orders.append(flat(given))
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize("shuffle", [True, "epoch"])
def test_a_loader_shuffles_by_itself(at, shuffle):
    at(0, 2)
    with pytest.raises(ValueError, match=r"DataLoader\(\.\.\., shuffle=True\)"):
        split_data(loader(), shuffle=shuffle)


def test_a_sampler_without_length(at):
    class Endless(data.Sampler):
        def __init__(self):
            pass

        def __iter__(self):
            return iter([0])

    at(0, 2)
    with pytest.raises(TypeError, match=r"must have a length.*Endless"):
        split_data(loader(sampler=Endless()))


def test_fewer_samples_than_ranks(at):
    at(0, 3)
    with pytest.raises(ValueError, match=r"Received: 2 sample\(s\) for 3 rank\(s\)"):
        split_data(loader(2))
