import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("sync_batch_norm_checks.py")


@mpi.jobs("tensorflow:2 torch:3", soak="jax:3")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_sync_batch_norm(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend)
