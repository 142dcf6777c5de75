import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("prediction_checks.py")


@mpi.jobs("tensorflow:3", soak="jax:2 torch:2")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_prediction(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend)
