import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("fit_checks.py")


@pytest.mark.parametrize("ranks", [1, mpi.soak(2), 3])
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_fit(ranks, check):
    mpi.assert_check(ranks, SCRIPT, check)
