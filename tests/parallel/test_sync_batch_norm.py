import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("sync_batch_norm_checks.py")


@pytest.mark.parametrize("ranks", [mpi.soak(2), 3])
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_sync_batch_norm(ranks, check):
    mpi.assert_check(ranks, SCRIPT, check)
