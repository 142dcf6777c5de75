"""Whatever goes wrong on one rank ends the job, soon, with its reason and the rank's name."""

import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time

import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("faulty_job.py")
HOST = socket.gethostname()
WITHIN = 10  # seconds from the fault to the end of the job
DIED = "died: it was killed, crashed, or called os._exit"


def run_faulty(ranks, *arguments, backend="tensorflow", env=None):
    mpi.require(backend)
    return run_with_fault(ranks, SCRIPT, *arguments, env={"KERAS_BACKEND": backend, **(env or {})})


def run_with_fault(ranks, script, *arguments, env=None):
    done = mpi.run(ranks, script, *arguments, env=env, timeout=90)
    ended = time.time()
    fault = re.search(r"fault at ([\d.]+)", done.stdout)
    assert fault, done.stdout
    assert ended - float(fault[1]) < WITHIN, done.stdout
    assert done.returncode != 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("backend", "ranks", "victim", "how"),
    [
        pytest.param("jax", 2, 0, "busy", marks=pytest.mark.gate),
        ("tensorflow", 3, 2, "fit"),
        pytest.param("jax", 2, 1, "fit", marks=pytest.mark.soak),
        pytest.param("torch", 2, 1, "fit", marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("raise_error", "failed: ValueError: on purpose"),
        ("sys_exit", "exited with status 1"),
        ("kill", DIED),
    ],
)
def test_ends_the_job(fault, backend, ranks, victim, how, expected):
    arguments = ["busy"] if how == "busy" else []
    output = run_faulty(ranks, fault, victim, *arguments, backend=backend)
    reason = [line for line in output.splitlines() if line.startswith("easyddl: rank")]
    assert reason, output
    assert reason[0].startswith(f"easyddl: rank {victim} on host {HOST}"), output
    assert expected in reason[0], output
    if fault == "raise_error":
        assert "Traceback (most recent call last)" in output
        assert "in raise_error" in output


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("system_exit", "exited with status 7"),
        ("crash", DIED),
        pytest.param("collected_error", "ValueError: on purpose", marks=pytest.mark.gate),
        ("exit_at_once", DIED),
        pytest.param(
            "end_early", "Rank 1 on host {host} has ended its script", marks=pytest.mark.gate
        ),
    ],
)
def test_other_ways_to_end(fault, expected):
    output = run_faulty(2, fault, 1, backend="jax")
    assert expected.format(host=HOST) in output
    assert re.search(rf"[rR]ank 1 on host {HOST}", output), output


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.gate), 4])
def test_a_rank_that_is_killed_in_the_middle_of_a_reduction(ranks):
    """The others reach into its memory then, and must not speak of that instead."""
    output = run_with_fault(ranks, SCRIPT.with_name("killed_job.py"))
    # On a host with much to do the launcher may be faster than they are.
    assert DIED in output or "signal 9" in output, output
    assert "process_vm" not in output and "Traceback" not in output, output


@pytest.mark.parametrize("fault", ["raise_error", pytest.param("sys_exit", marks=pytest.mark.gate)])
def test_before_mpi_has_started(fault):
    output = run_faulty(2, fault, 1, "before_mpi", backend="jax")
    assert re.search(rf"rank 1 on host {HOST} (failed before easyddl|exited with status 1)", output)


@pytest.mark.parametrize(
    "backend", ["tensorflow", "jax", pytest.param("torch", marks=pytest.mark.gate)]
)
def test_a_backward_pass_that_fails_half_way(backend):
    output = run_faulty(2, "raise_error", 1, "backwards", backend=backend)
    # By the name that the framework gives it.
    assert re.search(rf"easyddl: rank 1 on host {HOST} failed: \w*Error", output), output
    assert "ValueError: on purpose" in output


@pytest.mark.parametrize(
    ("fault", "expected"), [("raise_error", r"failed: \w*Error"), ("kill", DIED)]
)
def test_while_the_others_wait_for_its_rows(fault, expected):
    output = run_faulty(2, fault, 1, "sparse")
    assert re.search(rf"easyddl: rank 1 on host {HOST} .*{expected}", output), output


def test_one_whose_gradients_have_left_while_the_others_wait_for_something_else():
    """Both wait for each other then. PyTorch's backward pass alone comes to that."""
    output = run_faulty(
        2, "raise_error", 1, "normalized", backend="torch", env={"EASYDDL_STALL_WARN": "2"}
    )
    assert f"easyddl: rank 1 on host {HOST} failed: ValueError: on purpose" in output, output
    assert "Traceback (most recent call last)" in output


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("raise_error", rf"rank 1 on host {HOST} failed: \w*Error"),
        ("kill", f"rank 1 on host {HOST} .*{DIED}"),
        ("collective", r"allreduce\(\) needs all ranks, but some ranks have no more batches"),
    ],
)
@mpi.jobs("tensorflow:3", longest="jax:3 torch:3")
def test_while_a_rank_is_out_of_batches(fault, expected, backend, ranks):
    output = run_faulty(ranks, fault, 1, "uneven", backend=backend)
    assert re.search(expected, output), output
    if fault == "raise_error":
        assert "ValueError: on purpose" in output


@pytest.mark.parametrize(
    "racks",
    [
        pytest.param("u/x,u/x,u/y,v/z", id="between-aisles", marks=pytest.mark.gate),
        pytest.param("u/x,u/x,v/y,v/z", id="within-an-aisle"),
        pytest.param("u/x,u/y,v/z,v/z", id="within-a-rack"),
    ],
)
def test_a_rank_that_is_killed_in_a_reduction_of_three_levels(racks):
    """The rank is the last one. Its host owns a shard up to the level that the test names."""
    env = {"EASYDDL_HOSTS": "a,b,c,d", "EASYDDL_RACKS": racks}
    output = run_with_fault(4, SCRIPT.with_name("killed_job.py"), env=env)
    assert re.search(rf"rank 3 on host d .*{DIED}", output), output


@pytest.mark.parametrize("whom", ["launcher", "terminal"])
def test_ctrl_c(whom, tmp_path):
    path = tmp_path / "output"
    with path.open("w") as output:
        job = subprocess.Popen(
            mpi.command(2, [sys.executable, SCRIPT, "nothing", 0]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=mpi.environment(),
            start_new_session=True,
        )
    try:
        wait_for(lambda: "fault at" in path.read_text(), path)
        # A terminal sends Ctrl-C to all processes in the foreground.
        (os.kill if whom == "launcher" else os.killpg)(job.pid, signal.SIGINT)
        assert job.wait(WITHIN) != 0
        wait_for(lambda: not mpi.session_members(job.pid), path)
    finally:
        mpi.stop_session(job)


def wait_for(condition, path, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, path.read_text()
        time.sleep(0.1)
