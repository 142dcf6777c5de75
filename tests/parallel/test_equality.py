import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("equality_checks.py")


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_k_ranks_equal_one_process(ranks, check):
    mpi.assert_check(ranks, SCRIPT, check)


@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_with_a_bucket_for_every_gradient(check):
    mpi.assert_check(2, SCRIPT, check, EASYDDL_BUCKET_BYTES="1")


@pytest.mark.parametrize("check", ["check_dense_sgd", "check_convnet_adam_clipnorm"])
def test_on_two_hosts_of_unequal_size(check):
    mpi.assert_check(3, SCRIPT, check, EASYDDL_HOSTS="a,a,b")
