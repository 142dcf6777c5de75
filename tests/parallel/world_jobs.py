"""The jobs in which the world's checks run, which several test files share.

Importing Keras takes each process seconds, so one job runs the checks of all of them.
"""

import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("world_checks.py")

# The number of ranks, and the host of each where one machine plays several: hosts of equal
# size, with ranks in turns; of unequal size, host by host; and each rank on its own.
JOBS = [
    (2, ""),
    (3, ""),
    (8, ""),
    (4, "a,b,a,b"),
    (5, "a,a,a,b,b"),
    (4, "a,b,c,d"),
]


def each_check_in_each_job(module):
    """Runs a test for every check of `module` (a file beside this one) in every job."""
    checks = mpi.checks_of(SCRIPT.with_name(f"{module}.py"))
    return pytest.mark.parametrize(
        ("ranks", "hosts", "check"),
        [
            pytest.param(ranks, hosts, check, id=f"{ranks}-{hosts or 'one_host'}-{check}")
            for ranks, hosts in JOBS
            for check in checks
        ],
    )


def assert_check(ranks, hosts, check):
    """Asserts that a check passed on all ranks of a job."""
    mpi.assert_check(ranks, SCRIPT, check, EASYDDL_HOSTS=hosts)
