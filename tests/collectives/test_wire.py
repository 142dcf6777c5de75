"""Sums that hosts send each other in 16 bits."""

import pathlib

import mpi
import pytest

pytestmark = pytest.mark.mpirun

JOB = pathlib.Path(__file__).with_name("wire_job.py")


@pytest.mark.parametrize(
    ("hosts", "algorithm"),
    [
        ("a,b", "whole"),
        ("a,a,b,b", "direct"),
        pytest.param("a,b,c", "ring", marks=pytest.mark.gate),
        ("a,b,c,d", "direct"),
        ("a,b,c,d", "ring"),
        ("a,b,c,d", "halving"),
        pytest.param("a,b,c,d,e", "halving", marks=pytest.mark.gate),
        ("a,b,c", "whole"),
        ("a,a,b,b,c,c", "direct"),
        ("a,a,b,b,c,c,d,d", "halving"),
    ],
)
def test_sums_are_those_of_numpy(hosts, algorithm):
    ranks = hosts.count(",") + 1
    env = {"EASYDDL_HOSTS": hosts, "EASYDDL_ALGORITHM": algorithm}
    done = mpi.run(ranks, JOB, algorithm, env=env)
    assert done.returncode == 0 and done.stdout.count("all is well") == ranks, done.stdout
