import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("torch_checks.py")
# It takes longer than all others together.
COMPILED = "check_a_compiled_step"
CHECKS = tuple(check for check in mpi.checks_of(SCRIPT) if check != COMPILED)


@mpi.jobs("torch:3")
@pytest.mark.parametrize("check", CHECKS)
def test_torch(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, only=CHECKS, KERAS_BACKEND=backend)


@mpi.jobs("torch:2")
def test_a_compiled_step(backend, ranks):
    mpi.assert_check(ranks, SCRIPT, COMPILED, only=(COMPILED,), KERAS_BACKEND=backend)
