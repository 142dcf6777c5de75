import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("fidelity_checks.py")


@mpi.jobs("tensorflow:2 jax:2 torch:3", soak="tensorflow:1")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_fidelity(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend, JAX_ENABLE_X64="1")
