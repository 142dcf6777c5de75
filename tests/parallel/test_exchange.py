import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("exchange_checks.py")


@mpi.jobs("tensorflow:3", soak="jax:2")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_exchange(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend)


@pytest.mark.soak
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_on_several_hosts(check):
    mpi.assert_check(3, SCRIPT, check, EASYDDL_HOSTS="a,b,b")
