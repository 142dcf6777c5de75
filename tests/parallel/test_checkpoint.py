import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("checkpoint_checks.py")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_checkpoints(ranks, check):
    mpi.assert_check(ranks, SCRIPT, check)
