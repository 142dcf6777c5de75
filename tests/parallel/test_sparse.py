import pathlib

import mpi
import pytest

SCRIPT = pathlib.Path(__file__).with_name("sparse_checks.py")


@mpi.jobs("tensorflow:2")
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_sparse(backend, ranks, check):
    mpi.assert_check(ranks, SCRIPT, check, KERAS_BACKEND=backend)


SOME = (
    "check_uneven_batches",
    "check_several_dtypes_and_numbers_of_rows",
    "check_bad_rows_are_an_error_on_all_ranks",
)


@mpi.jobs("tensorflow:3")
@pytest.mark.parametrize("check", SOME)
def test_on_several_hosts(backend, ranks, check):
    hosts = {"EASYDDL_HOSTS": "a,b,b"}
    mpi.assert_check(ranks, SCRIPT, check, only=SOME, KERAS_BACKEND=backend, **hosts)
