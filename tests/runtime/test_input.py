"""A rank that waits for standard input, which rank 0 alone has, is told of."""

import pathlib

import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("input_job.py")
ENV = {"EASYDDL_STALL_WARN": "1", "EASYDDL_STALL_ABORT": "4"}


@pytest.mark.parametrize(("when", "words"), [
    pytest.param("after", "It reads standard input, as `input()` does.", marks=pytest.mark.gate),
    ("before", "Ending the job. A rank that reads standard input, as input() and `python -"),
])  # fmt: skip
def test_a_rank_that_reads_standard_input_is_named(when, words):
    done = mpi.run(2, SCRIPT, when, env=ENV, timeout=60)
    assert done.returncode != 0 and words in done.stdout, done.stdout


def test_a_rank_that_waits_for_its_script_is_told_of_before_the_time_of_a_warning():
    env = {"EASYDDL_STALL_WARN": "60", "EASYDDL_STALL_ABORT": "8"}
    done = mpi.run(2, SCRIPT, "before", env=env, timeout=60)
    assert "easyddl: warning: rank 0 on host" in done.stdout, done.stdout
