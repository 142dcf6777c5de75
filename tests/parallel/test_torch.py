import pathlib

import mpi
import pytest

pytest.importorskip("torch")

SCRIPT = pathlib.Path(__file__).with_name("torch_checks.py")
# It takes longer than all others together.
COMPILED = "check_a_compiled_step"
CHECKS = tuple(check for check in mpi.checks_of(SCRIPT) if check != COMPILED)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("check", CHECKS)
def test_torch(ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, only=CHECKS, KERAS_BACKEND="torch")


def test_a_compiled_step():
    mpi.assert_check(2, SCRIPT, COMPILED, only=(COMPILED,), KERAS_BACKEND="torch")
