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
    run(hosts, algorithm, EASYDDL_ALGORITHM=algorithm)


@pytest.mark.parametrize(
    ("hosts", "racks"),
    [
        pytest.param("a,b,c", "x,y,y", marks=pytest.mark.gate),
        ("a,a,b,c,d", "x,y,y,y"),
        ("a,b,c,d,e", "r/x,r/y,s/z,s/z,s/z"),
    ],
)
def test_racks_with_one_host_have_the_same_bits(hosts, racks):
    run(hosts, EASYDDL_RACKS=racks)


def run(hosts, *algorithm, **env):
    ranks = hosts.count(",") + 1
    done = mpi.run(ranks, JOB, *algorithm, env={"EASYDDL_HOSTS": hosts, **env})
    assert done.returncode == 0 and done.stdout.count("all is well") == ranks, done.stdout
