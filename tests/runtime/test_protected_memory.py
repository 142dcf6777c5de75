"""Ranks of one host whose memory the kernel does not let each other read."""

import pathlib

import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("protected_memory_job.py")


@pytest.mark.parametrize("ranks", ["0,1", "0", "1"])
def test_memory_that_is_protected_from_the_start(ranks):
    done = mpi.run(2, SCRIPT, "before", ranks, timeout=100)
    assert done.returncode == 0 and done.stdout.count("all is right") == 2, done.stdout


def test_memory_that_is_protected_later_is_named_with_what_to_do():
    done = mpi.run(2, SCRIPT, "after", "0,1", timeout=100)
    if done.returncode == 0:  # this MPI does not read other processes' memory
        assert done.stdout.count("all is right") == 2, done.stdout
        return
    assert "or set MPIR_CVAR_CH4_CMA_ENABLE=0, so that MPICH does not do so." in done.stdout
    done = mpi.run(2, SCRIPT, "after", "0,1", env={"MPIR_CVAR_CH4_CMA_ENABLE": "0"}, timeout=100)
    assert done.returncode == 0 and done.stdout.count("all is right") == 2, done.stdout
