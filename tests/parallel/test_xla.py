"""TensorFlow's steps as XLA compiles them, which it does on GPUs by itself."""

import pathlib

import mpi
import pytest
from test_equality import SOME as SOME_OF_EQUALITY
from test_uneven import SOME

EQUALITY, UNEVEN, NORMALIZATION = (
    pathlib.Path(__file__).with_name(f"{name}_checks.py")
    for name in ("equality", "uneven", "sync_batch_norm")
)
# XLA takes long for a step: a check of each kind that the exchange makes of it.
XLA_OF_EQUALITY = (*SOME_OF_EQUALITY, "check_custom_loop_compiled_by_xla")
XLA_OF_NORMALIZATION = ("check_equal_and_unequal_batches", "check_ranks_without_batches")
BY_XLA = {"EASYDDL_TEST_JIT_COMPILE": "1", "KERAS_BACKEND": "tensorflow"}


@pytest.mark.soak
@pytest.mark.parametrize("check", XLA_OF_EQUALITY)
def test_k_ranks_equal_one_process(check):
    mpi.assert_check(2, EQUALITY, check, only=XLA_OF_EQUALITY, **BY_XLA)


@pytest.mark.soak
@pytest.mark.parametrize("check", SOME)
def test_uneven(check):
    mpi.assert_check(2, UNEVEN, check, only=SOME, **BY_XLA)


@pytest.mark.soak
@pytest.mark.parametrize("check", XLA_OF_NORMALIZATION)
def test_sync_batch_norm(check):
    mpi.assert_check(2, NORMALIZATION, check, only=XLA_OF_NORMALIZATION, **BY_XLA)
