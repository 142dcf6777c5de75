import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("data_in_fit_checks.py")


@pytest.mark.parametrize("ranks", [mpi.soak(1), 2, mpi.soak(3)])
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_data_in_fit(ranks, check):
    mpi.assert_check(ranks, SCRIPT, check)
