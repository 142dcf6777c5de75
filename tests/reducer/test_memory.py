"""How much memory a reduction of gradients takes."""

import pathlib
import re

import mpi
import pytest

pytestmark = pytest.mark.mpirun

JOB = pathlib.Path(__file__).with_name("memory_job.py")


@pytest.mark.soak
@pytest.mark.parametrize("hosts", ["a,a", "a,a,b,b", "a,b,c"])
def test_the_memory_of_a_reduction(hosts):
    # glibc keeps what is freed for the next one to ask, unless it had been mapped by itself.
    environment = {"EASYDDL_HOSTS": hosts, "MALLOC_MMAP_THRESHOLD_": "65536"}
    size = 100_000_000
    done = mpi.run(hosts.count(",") + 1, JOB, size, env=environment)
    assert done.returncode == 0, done.stdout
    # Means take the place of their gradients: only slots and messages are new.
    assert int(re.search(r"most: (-?\d+)", done.stdout)[1]) < 64 << 20, done.stdout
