"""Gradients on GPUs, by every way, on the stand-ins for NCCL and the CUDA driver."""

import pathlib

import gpu_stand_in
import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("gpu_path_checks.py")

# The host of each rank, where one machine plays several, and the ways. NCCL's own is the same on
# any number of hosts.
EVEN = ["a,b", "a,a,b,b", "a,a,a,a,b,b,b,b"]
JOBS = [
    *[(hosts, way) for hosts in EVEN for way in ("nccl", "hierarchical")],
    ("a,a,a,a", "nccl"),
    ("a,a,b,b", "host"),
    ("a,a,b", "hierarchical"),  # hosts of unequal size
    ("a,a,b", ""),
]


def environment(hosts, way, **more):
    return {
        "EASYDDL_NCCL_PATH": str(gpu_stand_in.folder()),
        "EASYDDL_HOSTS": hosts,
        "EASYDDL_GPU": way,
        "STAND_IN_DELAY": "200",
        **more,
    }


@pytest.mark.parametrize(("hosts", "way"), JOBS, ids=lambda each: each or "chosen")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_gpu_path(hosts, way, check):
    mpi.assert_check(hosts.count(",") + 1, SCRIPT, check, **environment(hosts, way))


@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_a_driver_that_knows_no_waiting_for_words(check):
    env = environment("a,a", "nccl", STAND_IN_NO_WAIT_VALUE="1")
    mpi.assert_check(2, SCRIPT, check, **env)
