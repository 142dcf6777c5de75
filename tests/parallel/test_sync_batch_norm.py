import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("sync_batch_norm_checks.py")

# Where compiling takes long.
SOME = (
    "check_equal_and_unequal_batches",
    "check_one_layer_in_two_branches",
    "check_a_fit_after_one_that_was_interrupted",
    "check_ranks_without_batches",
)


@mpi.jobs("tensorflow:2 torch:3")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_sync_batch_norm(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend)


@mpi.jobs("", soak="jax:3")
@pytest.mark.parametrize("check", SOME)
def test_some(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, only=SOME, KERAS_BACKEND=backend)
