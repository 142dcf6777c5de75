"""Sums that hosts send each other in 16 bits."""

import pathlib

import mpi
import pytest

pytestmark = pytest.mark.mpirun

JOB = pathlib.Path(__file__).with_name("wire_job.py")


@pytest.mark.parametrize(
    ("hosts", "algorithm", "dtype"),
    [
        ("a,b", "whole", "bfloat16"),
        ("a,b", "whole", "float16"),
        ("a,a,b,b", "direct", "bfloat16"),
        pytest.param("a,b,c", "ring", "float16", marks=pytest.mark.gate),
        ("a,b,c,d", "direct", "float16"),
        ("a,b,c,d", "ring", "bfloat16"),
        ("a,b,c,d", "halving", "float16"),
        pytest.param("a,b,c,d,e", "halving", "bfloat16", marks=pytest.mark.gate),
        ("a,b,c", "whole", "bfloat16"),
        ("a,a,b,b,c,c", "direct", "float16"),
        ("a,a,b,b,c,c,d,d", "halving", "bfloat16"),
    ],
)
def test_sums_are_those_of_numpy(hosts, algorithm, dtype):
    run(hosts, dtype, algorithm, EASYDDL_ALGORITHM=algorithm)


@pytest.mark.parametrize(
    ("hosts", "racks"),
    [
        pytest.param("a,b,c", "x,y,y", marks=pytest.mark.gate),
        ("a,a,b,c,d", "x,y,y,y"),
        ("a,b,c,d,e", "r/x,r/y,s/z,s/z,s/z"),
    ],
)
def test_racks_with_one_host_have_the_same_bits(hosts, racks):
    for dtype in ("bfloat16", "float16"):
        run(hosts, dtype, EASYDDL_RACKS=racks)


def test_racks_of_one_host_each_round_no_more_than_hosts_without_racks():
    run("a,b,c", "bfloat16", "whole", EASYDDL_ALGORITHM="whole", EASYDDL_RACKS="x,y,z")


def run(hosts, *arguments, **env):
    ranks = hosts.count(",") + 1
    done = mpi.run(ranks, JOB, *arguments, env={"EASYDDL_HOSTS": hosts, **env})
    assert done.returncode == 0 and done.stdout.count("all is well") == ranks, done.stdout
