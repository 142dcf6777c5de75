"""The jobs in which the world's checks run, which several files of checks share.

Importing Keras takes each process seconds, so one job runs the checks of all of them.
"""

import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("world_checks.py")

# The backend, the number of ranks, and the host of each where one machine plays several: hosts of
# equal size, with ranks in turns; of unequal size, host by host; and each rank on its own.
JOBS = [
    ("tensorflow", 2, ""),
    ("torch", 3, ""),
    ("tensorflow", 5, "a,a,a,b,b"),
    ("jax", 4, "a,b,c,d"),
]
OF_THE_SOAK = [
    ("jax", 8, ""),
    ("tensorflow", 4, "a,b,a,b"),
]


def each_check_in_each_job(module):
    """Runs a test for every check of `module` (a file beside this one) in every job."""
    checks = mpi.checks_of(SCRIPT.with_name(f"{module}.py"))
    return pytest.mark.parametrize(
        ("backend", "ranks", "hosts", "check"),
        [
            pytest.param(
                *job, check, id=f"{job[0]}-{job[1]}-{job[2] or 'one_host'}-{check}", marks=marks
            )
            for jobs, marks in ((JOBS, ()), (OF_THE_SOAK, pytest.mark.soak))
            for job in jobs
            for check in checks
        ],
    )


def assert_check(backend, ranks, hosts, check):
    """Asserts that a check passed on all ranks of a job."""
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend, EASYDDL_HOSTS=hosts)
