"""Calls that end half-way on one rank: all ranks hear of it, and no memory is written to later."""

import json
import pathlib
import re

import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("half_way_job.py")
CHECKS = SCRIPT.with_name("half_way_checks.py")
SOON = 10  # seconds in which a rank hears that it cannot go on
INTERRUPTED = re.compile(r"\brank 0\b.*interrupt|interrupt.*\brank 0\b", re.I | re.S)
# Whatever waits for the others until then has not heard of what one of them met.
DEADLINES = {"EASYDDL_STALL_WARN": "10", "EASYDDL_STALL_ABORT": "20"}


@pytest.mark.parametrize("hosts", ["a,a", pytest.param("a,b,b", marks=pytest.mark.gate)])
@pytest.mark.parametrize("check", mpi.checks_of(CHECKS))
def test_out_of_memory(hosts, check):
    ranks = hosts.count(",") + 1
    mpi.assert_check(ranks, CHECKS, check, EASYDDL_HOSTS=hosts, **DEADLINES)


def interrupted(tmp_path, hosts, *arguments):
    """What the ranks tell of a job whose rank 0 is interrupted in its first call."""
    ranks = hosts.count(",") + 1
    env = {"EASYDDL_HOSTS": hosts, **DEADLINES}
    done = mpi.run(ranks, SCRIPT, tmp_path, *arguments, env=env, timeout=60)
    paths = [tmp_path / f"{rank}.json" for rank in range(ranks)]
    told = [path.read_text() if path.exists() else "" for path in paths]
    assert done.returncode == 0 and all(told), (told, done.stdout)
    return [json.loads(each) for each in told]


def assert_all_hear(trial):
    """All ranks' calls raise, soon, with what has come to rank 0."""
    first = trial[0]["calls"][0]
    assert first.get("kind") == "KeyboardInterrupt", first
    for rank, told in enumerate(trial):
        for number, call in enumerate(told["calls"]):
            what = f"rank {rank}, call {number}: {call}"
            assert call["verdict"] != "wrong" and call["seconds"] <= SOON, what
            assert call["verdict"] == "error" or number == 0, what  # the communicator is broken
            if call["verdict"] == "error" and call["kind"] != "KeyboardInterrupt":
                assert call["kind"] in ("RuntimeError", "Error"), what
                assert INTERRUPTED.search(call["text"]), what


@pytest.mark.parametrize(
    ("hosts", "call", "where"),
    [
        pytest.param("a,a", "allreduce", "wait", marks=pytest.mark.gate),
        ("a,b", "allreduce", "wait"),
        ("a,a", "allgather_object", "second_half"),
        pytest.param("a,b,b", "allgather", "between", marks=pytest.mark.gate),
        *(
            pytest.param("a,a,b", call, where, marks=pytest.mark.soak)
            for call, where in (
                ("barrier", "wait"),
                ("allgather", "wait"),
                ("allgather", "second_half"),
                ("allgather_object", "between"),
                ("alltoall", "second_half"),
                ("alltoall", "between"),
            )
        ),
    ],
)
def test_interrupted(tmp_path, hosts, call, where):
    trial = interrupted(tmp_path, hosts, call, where)
    assert_all_hear(trial)
    assert all(each["calls"][0]["verdict"] == "error" for each in trial), trial


@pytest.mark.parametrize(
    ("call", "seconds"),
    [
        ("allgather", 0.002),
        ("allgather", 0.006),
        *(
            pytest.param(call, seconds, marks=pytest.mark.soak)
            for call in ("allgather", "alltoall", "allreduce")
            for seconds in (0.001, 0.01, 0.03)
        ),
    ],
)
def test_interrupted_while_data_cross(tmp_path, call, seconds):
    trial = interrupted(tmp_path, "a,b", call, "transfer", seconds)
    assert trial[0]["overwritten"] == 0, trial
    assert trial[1]["calls"][0]["verdict"] != "wrong", trial
    if trial[0]["calls"][0]["verdict"] == "error":
        assert_all_hear(trial)
