import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("workers_checks.py")


@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_workers(check):
    mpi.assert_check(2, SCRIPT, check)
