import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("metrics_checks.py")


@pytest.mark.parametrize("ranks", [2, mpi.soak(3), mpi.soak(4)])
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_metrics(ranks, check):
    mpi.assert_check(ranks, SCRIPT, check)
