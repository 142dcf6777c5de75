"""TensorFlow's steps as XLA compiles them, which it does on GPUs by itself."""

import pathlib

import mpi
import pytest
from test_sync_batch_norm import SOME as SOME_OF_NORMALIZATION
from test_uneven import SOME

EQUALITY, UNEVEN, NORMALIZATION = (
    pathlib.Path(__file__).with_name(f"{name}_checks.py")
    for name in ("equality", "uneven", "sync_batch_norm")
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
