import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("uneven_checks.py")


@pytest.mark.parametrize("ranks", [mpi.soak(2), mpi.soak(3), 4])
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_uneven(ranks, check):
    mpi.assert_check(ranks, SCRIPT, check)


SOME = (
    "check_few_batches",
    "check_batches_of_different_sizes",
    "check_all_stop_after_the_same_step",
)


@pytest.mark.parametrize("check", SOME)
def test_on_several_hosts(check):
    mpi.assert_check(3, SCRIPT, check, only=SOME, EASYDDL_HOSTS="a,b,b")
