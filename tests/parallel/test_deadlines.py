"""A rank that comes late is named by the others, and one that never comes ends the job."""

import functools
import pathlib
import re
import socket

import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("late_job.py")
HOST = socket.gethostname()
WARN, ABORT = 1, 6
ENV = {"EASYDDL_STALL_WARN": str(WARN), "EASYDDL_STALL_ABORT": str(ABORT)}
RANKS = 3

# After these a job goes on: they share one. How, by which rank, and for how many seconds.
THAT_PASS = ("sleep_in_the_script,1,4.5", "stop,1,5", "save_for_long,0,9")


def run_late(*ways, ranks=2):
    return mpi.run(ranks, SCRIPT, *ways, env=ENV, timeout=90)


@functools.cache
def job_that_goes_on():
    return run_late(*THAT_PASS, ranks=RANKS)


def printed_in(how):
    """What the job that goes on printed while a rank was late in one way."""
    done = job_that_goes_on()
    assert done.returncode == 0, done.stdout
    parts = re.split(r"^begin (\w+)\n", done.stdout, flags=re.MULTILINE)
    printed = dict(zip(parts[1::2], parts[2::2], strict=True))[how]
    assert printed.count("has trained") == RANKS, done.stdout
    return printed


def warnings_of(output):
    """Of waits in steps: where the machine is busy, ranks may wait for each other at the start."""
    lines = [line for line in output.splitlines() if line.startswith("easyddl: warning: rank")]
    return [line for line in lines if "in the start of easyddl" not in line]


def test_a_late_rank_is_named_with_what_it_does():
    printed = printed_in("sleep_in_the_script")
    first = warnings_of(printed)[0]
    # One of those that wait speaks for all, and says in what: the step, and the bucket.
    assert all(line.startswith(f"easyddl: warning: rank 0 on host {HOST} has waited for")
               for line in warnings_of(printed))  # fmt: skip
    assert "in bucket 1 of 1 in step 3 of the exchange of 2 gradients" in first
    assert re.search(
        rf"rank 1 on host {HOST} has not come\. Its script is at\n(.*\n)*.*in be_elsewhere",
        printed,
    ), printed
    told = printed[printed.index(first) :]
    assert "rank 2" not in told.replace("rank 2 has trained", "")
    assert len(warnings_of(printed)) <= 4  # not more often than each second


def test_a_rank_that_is_stopped():
    assert f"rank 1 on host {HOST} does not answer: it is stopped" in printed_in("stop")


def test_a_root_that_saves_for_long_is_not_late():
    assert "it is busy with SlowCheckpoint.on_epoch_end" in printed_in("save_for_long")


@pytest.mark.gate
def test_a_rank_that_never_comes_ends_the_job():
    done = run_late("sleep_in_the_script,1,600")
    assert done.returncode != 0
    assert "That is too long: EASYDDL_STALL_ABORT is 6 s" in done.stdout
    assert f"rank 1 on host {HOST} has not come" in done.stdout
    assert f"easyddl: rank 0 on host {HOST} failed" in done.stdout


def test_ranks_that_wait_in_two_places_for_each_other():
    done = run_late("go_another_way,1,0")
    assert done.returncode != 0
    # At first no more is known: another thread of either may still be on its way.
    assert (
        "Each waits where the other has not come" in done.stdout.partition("parted ways: none")[0]
    )
    assert "The ranks have parted ways: none can go on." in done.stdout
    assert "in bucket 1 of 1 in step 3 of the exchange of 2 gradients" in done.stdout
    assert "broadcast_object(root_rank=0)" in done.stdout
