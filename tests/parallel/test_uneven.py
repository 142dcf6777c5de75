import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("uneven_checks.py")


@mpi.jobs("tensorflow:3", soak="jax:2")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_uneven(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend)


SOME = (
    "check_few_batches",
    "check_batches_of_different_sizes",
    "check_all_stop_after_the_same_step",
)


@mpi.jobs("torch:3")
@pytest.mark.parametrize("check", SOME)
def test_on_several_hosts(backend, ranks, check):
    hosts = {"EASYDDL_HOSTS": "a,b,b"}
    mpi.assert_check(ranks, SCRIPT, check, only=SOME, KERAS_BACKEND=backend, **hosts)
