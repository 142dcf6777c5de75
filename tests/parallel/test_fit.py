import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("fit_checks.py")


@mpi.jobs("tensorflow:2 jax:2 torch:3")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_fit(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend)
