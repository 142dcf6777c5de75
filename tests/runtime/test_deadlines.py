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
THAT_PASS = ("sleep_in_the_script,1,4.5", "stop,1,5", "save_for_long,0,9", "stop_all,1,10")


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


def test_a_late_rank_is_named_with_what_it_does():
    printed = printed_in("sleep_in_the_script")
    # Where the host is busy, ranks may wait for each other elsewhere, too.
    warning = r"^easyddl: warning: rank .* in step 3 of the reduction of 2 gradients.*\n(?:  .*\n)*"
    late = re.findall(warning, printed, re.MULTILINE)
    # One of those that wait speaks for all, and says in what: the step, and the bucket.
    begin = f"easyddl: warning: rank 0 on host {HOST} has waited for"
    assert all(each.startswith(begin) for each in late), printed
    assert re.search(
        r"in bucket 1 of 1 in step 3 of the reduction of 2 gradients .* in model.fit\(\)", late[0]
    )
    assert re.search(
        rf"rank 1 on host {HOST} has not entered it\. Its script is at\n(.*\n)*.*in be_elsewhere",
        printed,
    ), printed
    assert not any("rank 2" in each for each in late), printed
    assert len(late) <= 4, printed  # not more often than each second


def test_a_rank_that_is_stopped():
    assert f"rank 1 on host {HOST} does not answer: it is stopped" in printed_in("stop")


def test_a_job_that_is_suspended_goes_on():
    """The seconds in which no rank runs count for no deadline."""
    assert "has trained" in printed_in("stop_all")


def test_a_root_that_saves_for_long_is_not_late():
    assert "it is busy with SlowCheckpoint.on_epoch_end" in printed_in("save_for_long")


@pytest.mark.gate
def test_a_rank_that_never_comes_ends_the_job():
    done = run_late("sleep_in_the_script,1,600")
    assert done.returncode != 0
    assert "That is too long: EASYDDL_STALL_ABORT is 6 s" in done.stdout
    assert f"rank 1 on host {HOST} has not entered it" in done.stdout
    assert f"easyddl: rank 0 on host {HOST} failed" in done.stdout


def test_ranks_that_wait_in_two_places_for_each_other():
    done = run_late("go_another_way,1,0")
    assert done.returncode != 0
    # At first no more is known: another thread of either may still be on its way.
    possible = "These ranks wait for each other in different collectives."
    certain = "This is a deadlock: the ranks wait for each other in different collectives."
    assert possible in done.stdout.partition(certain)[0]
    assert certain in done.stdout
    assert "in bucket 1 of 1 in step 3 of the reduction of 2 gradients" in done.stdout
    assert "broadcast_object(root_rank=0)" in done.stdout
