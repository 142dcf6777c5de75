"""TensorFlow's steps as XLA compiles them, which it does on GPUs by itself."""

import pathlib

import mpi
import pytest
from test_uneven import SOME

EQUALITY, UNEVEN, NORMALIZATION = (
    pathlib.Path(__file__).with_name(f"{name}_checks.py")
    for name in ("equality", "uneven", "sync_batch_norm")
)
SOME_OF_NORMALIZATION = (
    "check_equal_and_unequal_batches",
    "check_one_layer_in_two_branches",
    "check_a_fit_after_one_that_was_interrupted",
    "check_ranks_without_batches",
)
BY_XLA = {"EASYDDL_TEST_JIT_COMPILE": "1", "KERAS_BACKEND": "tensorflow"}


@pytest.mark.soak
@pytest.mark.parametrize("check", mpi.checks_of(EQUALITY))
def test_k_ranks_equal_one_process(check):
    mpi.assert_check(2, EQUALITY, check, **BY_XLA)


@pytest.mark.soak
@pytest.mark.parametrize("check", SOME)
def test_uneven(check):
    mpi.assert_check(2, UNEVEN, check, only=SOME, **BY_XLA)


@pytest.mark.soak
@pytest.mark.parametrize("check", SOME_OF_NORMALIZATION)
def test_sync_batch_norm(check):
    mpi.assert_check(2, NORMALIZATION, check, only=SOME_OF_NORMALIZATION, **BY_XLA)
