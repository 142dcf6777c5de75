"""One rank leaves a fit by an error, which some ranks do not catch, or fails in an update."""

import pathlib
import re

import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("failed_fits_job.py")


def run(backend, *catching):
    mpi.require(backend)
    done = mpi.run(2, SCRIPT, *catching, env={"KERAS_BACKEND": backend}, timeout=200)
    return done.returncode, done.stdout


@mpi.jobs("torch:2 jax:2 tensorflow:2")
def test_the_reason_comes_first_if_nobody_catches_it(backend, ranks):
    status, printed = run(backend)
    assert status != 0, printed
    failed = re.findall(r"^easyddl: rank (\d) on host .* failed: (\w+)", printed, re.MULTILINE)
    assert failed[:1] == [("1", "OSError")], printed
    assert "scores" not in printed


@mpi.jobs("torch:2")
def test_the_rank_that_fails_does_not_catch_it(backend, ranks):
    status, printed = run(backend, 0)
    assert status != 0, printed
    assert "easyddl: rank 1 on host" in printed and "OSError: no such image" in printed, printed
    assert "scores" not in printed


@mpi.jobs("torch:2 tensorflow:2")
def test_only_the_rank_that_fails_catches_it(backend, ranks):
    status, printed = run(backend, 1)
    assert status != 0, printed
    assert "rank 1 has caught OSError" in printed, printed
    told = "A collective failed part-way on rank 1 on host"
    assert told in printed and "was given up by OSError: no such image" in printed, printed
    assert "scores" not in printed


@mpi.jobs("torch:2")
def test_all_catch_theirs(backend, ranks):
    status, printed = run(backend, 0, 1)
    assert status == 0, printed
    assert printed.count("scores [0, 1]") == 2, printed


@mpi.jobs("torch:2 tensorflow:3")
def test_an_update_fails_on_one_rank(backend, ranks):
    mpi.require(backend)
    script = SCRIPT.with_name("failed_update_job.py")
    done = mpi.run(ranks, script, env={"KERAS_BACKEND": backend}, timeout=200)
    assert done.stdout.count("all ranks have heard") == ranks, done.stdout
