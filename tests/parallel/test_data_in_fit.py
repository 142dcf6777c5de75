import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("data_in_fit_checks.py")


@mpi.jobs("tensorflow:2")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_data_in_fit(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend)
