"""Ranks of one host whose memory the kernel does not let each other read."""

import pathlib

import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("protected_memory_job.py")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("ranks", ["0,1", "0", "1"])
def test_memory_that_is_protected_before_or_after_the_start(when, ranks):
    done = mpi.run(2, SCRIPT, when, ranks, timeout=100)
    assert done.returncode == 0 and done.stdout.count("all is right") == 2, done.stdout


def test_two_hosts_of_which_one_has_protected_ranks():
    """Ranks send short messages within that host, and long ones to the other."""
    hosts = {"EASYDDL_HOSTS": "a,a,b", "MPIR_CVAR_CH4_CMA_ENABLE": "0"}
    done = mpi.run(3, SCRIPT, "after", "0,1", env=hosts, timeout=100)
    assert done.returncode == 0 and done.stdout.count("all is right") == 3, done.stdout


def test_what_only_mpi_can_change_is_named_with_what_to_do():
    """Ranks that count as hosts of their own exchange gradients by messages of MPI."""
    hosts = {"EASYDDL_HOSTS": "a,b"}
    done = mpi.run(2, SCRIPT, "after", "0,1", env=hosts, timeout=100)
    if done.returncode != 0:  # not every MPI reads other processes' memory
        assert "or set MPIR_CVAR_CH4_CMA_ENABLE=0, so that MPICH does not do so." in done.stdout
    done = mpi.run(2, SCRIPT, "after", "0,1", env={**hosts, "MPIR_CVAR_CH4_CMA_ENABLE": "0"})
    assert done.returncode == 0 and done.stdout.count("all is right") == 2, done.stdout
