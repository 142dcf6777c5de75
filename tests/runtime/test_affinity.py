import os
import types

import pytest

from easyddl.hosts import launched_process
from easyddl.machine.cgroup import CpuQuota
from easyddl.runtime import affinity
from easyddl.runtime.affinity import RankCpus


def ranks(*masks, offered=64, kernel="m", quota=None):
    return [
        RankCpus(kernel, frozenset(mask), max(offered, len(mask)), quota, "h") for mask in masks
    ]


PACKAGES = [range(32), range(32, 64)]  # as Open MPI binds ranks
QUOTA = CpuQuota(6.5, "1")


@pytest.mark.parametrize(
    ("everyones", "expected"),
    [
        # Ranks that are not bound share all cores.
        (ranks(*[range(64)] * 4), [16] * 4),
        (ranks(*[range(8)] * 3), [2] * 3),
        (ranks(*[range(2)] * 8), [1] * 8),
        # Of the cores to which they are bound they share those of several ranks.
        (ranks(range(6), range(6, 8)), [6, 2]),
        (ranks(*PACKAGES, *PACKAGES), [16] * 4),
        (ranks(*[range(4)] * 4), [1] * 4),
        (ranks(range(4), {2, 3}), [3, 1]),
        (ranks({0}, {0}, {0}, range(4)), [1, 1, 1, 3]),
        # Ranks of other hosts share nothing.
        (ranks(range(8), kernel="a") + ranks(range(8), range(8), kernel="b"), [8, 4, 4]),
        # A quota is shared by the ranks of its cgroup.
        (ranks(*[range(64)] * 2, quota=QUOTA), [3, 3]),
        (ranks(*[range(64)] * 2, quota=QUOTA) + ranks(*[range(64)] * 2), [3, 3, 16, 16]),
        (ranks(*[range(64)] * 4, quota=CpuQuota(2, "1")), [1] * 4),
        (ranks({0}, {1}, quota=CpuQuota(100, "1")), [1, 1]),
    ],
)
def test_the_threads_of_each_rank(everyones, expected):
    assert [affinity.threads_of(rank, everyones) for rank in range(len(everyones))] == expected


@pytest.mark.parametrize(
    ("cpus", "offered", "local", "quota", "want"),
    [
        (8, 8, 4, None, 2),  # not bound
        (1, 64, 2, None, 1),  # bound to a core each
        (32, 64, 4, None, 16),  # bound to a package with another rank
        (16, 64, 4, None, 16),  # bound to cores of its own
        (2, 2, 8, None, 1),
        (64, 64, 1, 4.0, 4),
        (64, 64, 4, 10.0, 2),
        (64, 64, 4, 1.0, 1),
    ],
)
def test_the_estimate_of_a_rank_that_does_not_know_the_others(cpus, offered, local, quota, want):
    quota = quota and CpuQuota(quota, "1")
    mine = RankCpus("m", frozenset(range(cpus)), offered, quota)
    assert affinity.estimate(mine, local) == want


def test_ranks_that_use_few_of_the_cores_are_told():
    # As Open MPI binds two ranks.
    text = affinity.unused(ranks({0}, {1}, offered=64))
    assert "2 ranks use 2 of 64 CPUs on host h" in text
    assert "easyddl run" in text and "--bind-to none" in text
    assert "1 rank uses 1 of 64" in affinity.unused(ranks({0}, offered=64))


@pytest.mark.parametrize(
    "everyones",
    [
        ranks(range(64), range(64)),
        ranks(range(32), range(32, 64)),
        ranks(*[{cpu} for cpu in range(40)]),
        ranks(range(4), range(4), offered=4),  # as `taskset -c 0-3 mpirun` starts them
        ranks({0}, {1}, offered=64, quota=CpuQuota(2, "1")),
        ranks({0}, offered=1),
    ],
)
def test_ranks_that_use_most_of_the_cores_are_not_warned(everyones):
    assert affinity.unused(everyones) is None


def test_the_host_whose_cores_are_unused_is_named():
    bad = [RankCpus("other", frozenset({0}), 16, None, "h7")]
    assert "1 of 16 CPUs on host h7" in affinity.unused(ranks(range(64)) + bad)


@pytest.fixture
def process(monkeypatch):
    """Stands in for the masks of this process and of its launcher, and for its quota."""
    state = types.SimpleNamespace(own={0, 1}, launcher=set(range(8)), quota=None)
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda pid: state.own if pid == 0 else state.launcher
    )
    monkeypatch.setattr(affinity.cgroup, "cpu_quota", lambda: state.quota)
    monkeypatch.setattr(launched_process, "local_size", lambda: 4)
    monkeypatch.setattr(launched_process, "size", lambda: 4)
    monkeypatch.setattr(affinity, "_agreed", None)
    return state


class Comm:
    """Stands in for the communicator of two ranks that are alike."""

    def __init__(self, rank):
        self.rank = rank

    def allgather(self, mine):
        return [mine, mine]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_ranks_compare_their_masks(process, capsys, rank):
    assert affinity.compute_threads() == 2
    affinity.compare(Comm(rank), affinity.of_this_process("h"))
    assert affinity.compute_threads() == 1  # both have the same two
    assert ("2 ranks use 2 of 8 CPUs" in capsys.readouterr().err) == (rank == 0)


def test_one_process_without_a_launcher_is_not_warned(process, monkeypatch, capsys):
    monkeypatch.setattr(launched_process, "size", lambda: None)
    affinity.compare(Comm(0), affinity.of_this_process("h"))
    assert capsys.readouterr().err == ""


def test_a_launcher_that_has_ended(process, monkeypatch):
    def getaffinity(pid):
        if pid:
            raise ProcessLookupError
        return {0, 1}

    monkeypatch.setattr(os, "sched_getaffinity", getaffinity)
    assert affinity.of_this_process().offered == 2


def test_threads_are_limited_by_a_quota_or_by_other_ranks(process, monkeypatch):
    assert affinity.are_limited()
    monkeypatch.setattr(launched_process, "local_size", lambda: 1)
    assert not affinity.are_limited()
    process.quota = CpuQuota(1, "1")
    assert affinity.are_limited()
    assert affinity.compute_threads() == 1
