import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("replicas_checks.py")


@mpi.jobs("jax:2")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_replicas(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend)
