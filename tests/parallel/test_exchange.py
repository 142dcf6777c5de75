import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("exchange_checks.py")


@pytest.mark.parametrize("ranks", [mpi.soak(1), 3])
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_exchange(ranks, check):
    mpi.assert_check(ranks, SCRIPT, check)


@pytest.mark.soak
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_on_several_hosts(check):
    mpi.assert_check(3, SCRIPT, check, EASYDDL_HOSTS="a,b,b")
