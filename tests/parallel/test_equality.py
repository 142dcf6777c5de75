import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("equality_checks.py")

# What differs by the backend, by the number of ranks, or by what lies between them: the exchange
# and the scale. The other optimizers and clips are Keras's own after it, on any backend.
SOME = (
    "check_dense_sgd",
    "check_convnet_adam_clipnorm",
    "check_dense_adam_accumulating",
    "check_momenta_become_subnormal",
    "check_custom_loop_in_eager_mode",
    "check_custom_loop_in_a_graph",
)


@mpi.jobs("tensorflow:3", soak="jax:2 torch:2")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_k_ranks_equal_one_process(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend)


@mpi.jobs("jax:2 torch:2")
@pytest.mark.parametrize("check", SOME)
def test_some_on_other_backends(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, only=SOME, KERAS_BACKEND=backend)


@mpi.jobs("", soak="jax:4")
@pytest.mark.parametrize("check", SOME)
def test_more_ranks_and_a_bucket_for_every_gradient(backend, ranks, check):
    env = {"KERAS_BACKEND": backend, "EASYDDL_BUCKET_BYTES": "1"}
    mpi.assert_check(ranks, SCRIPT, check, only=SOME, **env)


@mpi.jobs("tensorflow:3")
@pytest.mark.parametrize("check", SOME)
def test_on_two_hosts_of_unequal_size(backend, ranks, check):
    hosts = {"EASYDDL_HOSTS": "a,a,b"}
    mpi.assert_check(ranks, SCRIPT, check, only=SOME, KERAS_BACKEND=backend, **hosts)
