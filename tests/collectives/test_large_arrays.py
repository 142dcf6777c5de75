"""Collectives of more bytes than an int can count."""

import pathlib

import mpi
import pytest

pytestmark = pytest.mark.mpirun

JOB = pathlib.Path(__file__).with_name("large_arrays_job.py")
MOST_BYTES = 2**31 + 4 * 12_345
NEEDED_BYTES = 6 * MOST_BYTES


@pytest.mark.longest
@pytest.mark.skipif(
    mpi.available_bytes() < NEEDED_BYTES,
    reason=f"needs {NEEDED_BYTES / 1e9:.0f} GB of free memory",
)
@pytest.mark.parametrize(("hosts", "collectives"), [("a,a", "sums rows"), ("a,b", "parts objects")])
def test_more_than_two_to_the_31_bytes(hosts, collectives):
    environment = {"EASYDDL_HOSTS": hosts}
    done = mpi.run(2, JOB, MOST_BYTES, *collectives.split(), env=environment)
    assert done.returncode == 0 and done.stdout.count("all is well") == 2, done.stdout
