import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("global_batch_checks.py")


@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_global_batch(check):
    mpi.assert_check(2, SCRIPT, check)
