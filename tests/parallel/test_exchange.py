import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("exchange_checks.py")


@mpi.jobs("tensorflow:3", soak="jax:2")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_exchange(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend)


# What depends on how ranks reach each other, and not on what a model or a fit is.
SOME = (
    "check_buckets_of_every_size",
    "check_half_precision_is_summed_in_single",
    "check_several_dtypes_at_once",
    "check_gradients_that_some_ranks_lack",
    "check_several_models_in_turn_and_together",
    "check_a_callback_that_exchanges_from_a_thread",
    "check_ranks_that_differ_in_bucket_bytes",
    "check_a_step_that_failed_on_all_ranks_can_be_followed_by_another",
    "check_many_fits_leave_nothing_behind",
    "check_optimizers_that_are_dropped_leave_nothing_behind",
)


@pytest.mark.soak
@pytest.mark.parametrize("check", SOME)
def test_on_several_hosts(check):
    mpi.assert_check(3, SCRIPT, check, only=SOME, EASYDDL_HOSTS="a,b,b")
