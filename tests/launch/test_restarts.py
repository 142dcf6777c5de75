"""`easyddl run --restarts`: which ends another start follows, and on which hosts it runs."""

import errno
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from unittest import mock

import mpi
import pytest

from easyddl.hosts.host_list import HostSlots
from easyddl.launch.start.command_line import CommandLine
from easyddl.launch.start.placement import Placement
from easyddl.launch.start.request import Request
from easyddl.launch.supervise import host_check, restarts, verdict
from easyddl.launch.supervise.job import Job, JobFailed
from easyddl.launch.supervise.verdict import Cause, Outcome
from easyddl.transport.connection import ENDED, ConnectionLost

CHECKPOINT_JOB = pathlib.Path(__file__).parents[1] / "checkpoint" / "checkpoint_job.py"
JOB = pathlib.Path(__file__).with_name("restart_job.py")

BEGUN, SAVED = ["start"], ["start", "import", "restore", "first step", "backup"]
DONE = (SAVED, Outcome(0, Cause.DONE))


def rank(number, host="h1", **state):
    state = {"ended_at": time.monotonic(), **state}
    return verdict.Rank(number, {"host": host, "kernel": host}, link=None, **state)


def killed(number=0, events=SAVED):
    return events, Outcome(137, Cause.LOST, rank(number, status=137))


FAILED = (SAVED, Outcome(3, Cause.SCRIPT, rank(0, status=3)))
NOT_STARTED = ([], Outcome(1, Cause.NOT_STARTED))


def run(ends, most=9, min_np=1, wait=0.0, on_error=False, np=None, silent=(), can_ask=True):
    """Runs a job on h1 to h3, whose starts end as listed.

    Args:
        silent: For each question which hosts answer, the hosts that do not.

    Returns:
        The exit status, and the hosts of each start.
    """
    hosts = [HostSlots(name, 2) for name in ("h1", "h2", "h3")]
    request = Request(["python"], np=np, hosts=hosts, host_timeout=1.0)
    silent, starts = iter(silent), []

    def on_host(name, words):
        return ["false"] if name in gone else ["echo", host_check.HOST, name]

    def ask(names):
        nonlocal gone
        gone = next(silent, ())
        return found(names)

    def start(number, placed, hear):
        starts.append(",".join(map(str, placed.hosts)))
        events, outcome = ends[number - 1]
        for event in events:
            hear(event)
        return outcome

    gone, line = (), CommandLine("mpirun", [], {}, on_host if can_ask else None)
    placed = Placement(hosts, "-H", offered=hosts).on({"h1", "h2", "h3"}, np)
    job = restarts.Restarts(request, placed, line, most, min_np, wait, on_error)
    found, job._silent_among = job._silent_among, ask
    return job.run(start), starts


ALL = "h1:2,h2:2,h3:2"


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr(restarts, "_MARGIN", 0.0)
    monkeypatch.setattr(restarts, "_ASK", 0.01)


@pytest.mark.parametrize(
    ("ends", "options", "status", "starts", "words"),
    [
        ([killed(), DONE], {}, 0, 2, "easyddl: restart 1 of 9\n"),
        ([killed(), killed(2), DONE], {}, 0, 3, "easyddl: restart 2 of 9\n"),
        ([FAILED], {}, 3, 1, "not restarted: the script has failed by itself. "),
        ([FAILED] * 3 + [DONE], {"on_error": True}, 0, 4, ""),
        ([killed(events=BEGUN)], {}, 137, 1, "not restarted: this start has saved no backup "),
        ([killed(), killed(events=BEGUN)], {}, 137, 2, "this start has saved no backup "),
        ([killed()] * 2, {"most": 1}, 137, 2, "this was restart 1 of `--restarts 1`."),
        ([NOT_STARTED], {}, 1, 1, "the first start has not begun."),
        ([killed(), NOT_STARTED, DONE], {}, 0, 3, ""),
        ([(SAVED, Outcome(143, Cause.SIGNAL))], {}, 143, 1, ""),
    ],
)
def test_which_ends_another_start_follows(ends, options, status, starts, words, capfd):
    assert run(ends, **options) == (status, [ALL] * starts)
    assert words in capfd.readouterr().err


def test_hosts_that_do_not_answer_are_left_out_while_they_do_not(capfd):
    status, starts = run([killed(), killed(), DONE], silent=[("h1", "h3"), ()])
    assert (status, starts) == (0, [ALL, "h2:2", ALL])
    assert "easyddl: 2 hosts not answering: h1, h3\n" in capfd.readouterr().err


def test_a_spare_host_is_used():
    assert run([killed(), DONE], np=4, silent=[("h1",)])[1] == ["h1:2,h2:2", "h2:2,h3:2"]


def test_too_few_slots_end_the_job_with_a_status_for_schedulers(capfd):
    assert run([killed()], min_np=5, silent=[("h2",)]) == (os.EX_TEMPFAIL, [ALL])
    assert "4 slots left, fewer than `--min-np 5`. Status 75." in capfd.readouterr().err


def test_a_host_that_comes_back_in_time_is_waited_for():
    assert run([killed(), DONE], min_np=5, wait=60.0, silent=[("h2",), ()]) == (0, [ALL, ALL])


def test_a_host_on_which_ranks_were_killed_three_times_is_left_out(capfd):
    assert run([killed(2), killed(3), killed(2), DONE])[1] == [ALL, ALL, ALL, "h1:2,h3:2"]
    assert "host h2 is left out: ranks were killed there 3 times." in capfd.readouterr().err


def test_a_lost_host_that_cannot_be_asked_is_left_out():
    lost = SAVED, Outcome(1, Cause.LOST, rank(2, lost="it does not answer"))
    assert run([lost, DONE], can_ask=False)[1] == [ALL, "h1:2,h3:2"]


def test_the_seconds_of_a_restart_are_told_by_part(capfd):
    run([killed(), DONE])
    parts = ("notice", "end", "hosts", "start", "import", "restore", "first step")
    numbers = ", ".join(rf"{part} \d+\.\d" for part in parts)
    told = re.findall(rf"easyddl: the restart took \d+\.\d s: {numbers}\n", capfd.readouterr().err)
    assert len(told) == 1


STOPPED = "easyddl: received SIGTERM on rank 1. Saved epoch 2, step 3, to backup. Start it again."
DIED = "easyddl: rank 1 on host h1 (process 7) died: it was killed, crashed."
FAILURE = "easyddl: rank 0 on host h1 failed: ValueError: of the script"
PEER = "RuntimeError: MPI_Waitall failed: Other MPI error, Connection reset by peer"
MPI4PY = "mpi4py.MPI.Exception: Other MPI error, error stack:"


@pytest.mark.parametrize(
    ("ranks", "cause", "number"),
    [
        ([rank(0, status=3), rank(1, status=143, ordered=True)], Cause.SCRIPT, 0),
        ([rank(0, status=127, problem="no such file")], Cause.SCRIPT, 0),
        ([rank(0, status=1, problem="its end", is_agent_lost=True)], Cause.LOST, 0),
        ([rank(0, status=137)], Cause.LOST, 0),
        ([rank(0, status=255)], Cause.SCRIPT, 0),  # sys.exit(-1)
        ([rank(0, lost="it does not answer")], Cause.LOST, 0),
        ([rank(0, status=143), rank(1, status=143, lines=[STOPPED])], Cause.SIGNAL, None),
        # It had an error before it was killed.
        ([rank(0, status=143, ordered=True, after_kill=True, lines=[FAILURE])], Cause.SCRIPT, 0),
        # Its supervisor had lost `easyddl run`, and killed it.
        (
            [rank(0, status=1, lines=[DIED]), rank(1, status=137, ordered=True, after_kill=True)],
            *(Cause.LOST, 1),
        ),
        # A survivor tells of the loss of its peer before the launcher has noticed that.
        ([rank(0, status=1, lines=[PEER]), rank(1, "h2", lost="it ended")], Cause.LOST, 1),
        ([rank(0, status=1, lines=[PEER]), rank(1, status=143, ordered=True)], Cause.LOST, None),
        ([rank(0, status=1, lines=[MPI4PY]), rank(1, "h2", lost="it ended")], Cause.LOST, 1),
    ],
)
def test_the_cause_of_an_end(ranks, cause, number):
    found = verdict.outcome_of(verdict.first_failure(ranks), ranks)
    assert (found.cause, found.rank and found.rank.number) == (cause, number)


def job_of(*ranks):
    placed = Placement([HostSlots("h1", len(ranks))], "-H")
    made = Job(Request(["python"]), placed, CommandLine("mpirun", [], {}))
    made._ranks = {each.number: each for each in ranks}
    return made


@pytest.mark.parametrize(
    ("launcher", "after_kill", "status"), [(-9, False, 137), (9, False, 0), (9, True, 0)]
)
def test_a_launcher_that_fails_after_all_ranks_is_no_loss(launcher, after_kill, status, capfd):
    # The ranks may have left by os._exit(0), which MPICH's launcher takes for a failure.
    ended = job_of(rank(0, status=0, after_kill=after_kill, lines=[DIED]), rank(1, status=0))
    ended._launcher = mock.Mock(returncode=launcher)
    assert ended._judge() == Outcome(status, Cause.DONE)
    assert "no rank reported a failure of its own" in capfd.readouterr().err


def test_a_signal_that_is_passed_on_and_ends_ranks_ends_the_job():
    ended = job_of(rank(0, status=128 + signal.SIGUSR1), rank(1, status=0))
    ended._begun = True
    ended._note(signal.SIGUSR1, None)
    assert ended._judge() == Outcome(128 + signal.SIGUSR1, Cause.SIGNAL)


def test_a_rank_that_is_lost_before_it_is_told_to_run_has_not_started():
    begun = job_of(rank(0), rank(1, "h2", lost="it ended"))
    with pytest.raises(JobFailed, match="did not start: host h2 was lost"):
        begun._fail_if_ended()


@pytest.mark.parametrize(("error", "lost"), [(ENDED, False), (os.strerror(errno.ECONNRESET), True)])
def test_a_rank_whose_host_has_booted_again_is_lost(error, lost):
    there = rank(0, alive=mock.Mock(**{"receive.side_effect": ConnectionLost(error)}))
    job_of(there)._hear_alive(there)
    assert there.is_over is lost


def easyddl_run(*arguments):
    line = [sys.executable, "-m", "easyddl", "run", "--quiet", "-np", 2, *arguments]
    return mpi.run_command(list(map(str, line)), mpi.environment(mpi.ANY_BACKEND))


@pytest.mark.mpirun
@pytest.mark.gate
def test_a_training_goes_on_after_a_killed_rank(tmp_path):
    """The second start compares its weights with those of a training without a fault."""
    script = (
        f'case $EASYDDL_START in 1) w="killed {tmp_path} 3 1";; *) w="again {tmp_path} 3";; esac; '
        f"exec {sys.executable} {CHECKPOINT_JOB} $w"
    )
    done = easyddl_run("--restarts", 2, "--", "sh", "-c", script)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("the same bits") == 2, done.stdout
    assert "rank 1 is killed after" in done.stdout and "easyddl: restart 1 of 2\n" in done.stdout


@pytest.mark.mpirun
@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ("error", 1, "not restarted: the script has failed by itself."),
        ("kill_before_a_backup", 137, "not restarted: this start has saved no backup"),
    ],
)
def test_ends_of_ranks_that_no_start_follows(fault, status, words):
    done = easyddl_run("--restarts", 1, sys.executable, JOB, fault)
    assert done.returncode == status, done.stdout
    assert words in done.stdout and "in start 2" not in done.stdout, done.stdout


def processes_with(argument):
    return subprocess.run(["pgrep", "-f", argument], stdout=subprocess.PIPE).stdout


@pytest.mark.mpirun
def test_a_rank_whose_launcher_is_gone_saves_nothing(tmp_path):
    """SIGTERM, which a job without restarts would send, makes `BackupAndRestore` save."""
    done = easyddl_run("--restarts", 1, sys.executable, JOB, "kill_the_launcher", tmp_path / "term")
    assert done.returncode == -signal.SIGKILL, done.stdout
    limit = time.monotonic() + 30
    while processes_with(str(tmp_path)):
        assert time.monotonic() < limit
        time.sleep(0.1)
    assert not (tmp_path / "term").exists()
