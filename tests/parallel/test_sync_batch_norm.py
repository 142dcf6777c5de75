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

# TensorFlow traces it for as long as half of the others together.
LARGE = "check_many_layers"
OTHERS = tuple(check for check in mpi.checks_of(SCRIPT) if check != LARGE)


@mpi.jobs("tensorflow:2 torch:3")
@pytest.mark.parametrize("check", OTHERS)
def test_sync_batch_norm(backend, ranks, check):
    only = OTHERS if backend == "tensorflow" else ()
    mpi.assert_check(ranks, SCRIPT, check, only, KERAS_BACKEND=backend)


@mpi.jobs("torch:3", soak="tensorflow:2")
def test_many_layers(backend, ranks):
    only = (LARGE,) if backend == "tensorflow" else ()
    mpi.assert_check(ranks, SCRIPT, LARGE, only, KERAS_BACKEND=backend)


@mpi.jobs("", soak="jax:3")
@pytest.mark.parametrize("check", SOME)
def test_some(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, only=SOME, KERAS_BACKEND=backend)
