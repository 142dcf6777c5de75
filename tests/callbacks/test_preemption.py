"""Trainings that a signal ends, as a scheduler does that takes their hosts back."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import leftovers
import mpi
import pytest

from easyddl.machine import process_tree
from easyddl.runtime import mpi_files

pytestmark = pytest.mark.mpirun

JOB = pathlib.Path(__file__).with_name("preemption_job.py")
TIMEOUT = 120


def resume(ranks, folder, save_freq, env, stopped):
    again = mpi.run(ranks, JOB, "again", folder, save_freq, env=env, timeout=TIMEOUT)
    said = f"It was stopped so:\n{stopped}\nIt went on so:\n{again.stdout}"
    assert again.returncode == 0 and again.stdout.count("the same bits") == ranks, said


@pytest.mark.parametrize(
    ("backend", "ranks", "save_freq"),
    [
        ("jax", 2, "epoch"),
        pytest.param("torch", 2, "epoch", marks=pytest.mark.soak),
        pytest.param("tensorflow", 2, "epoch", marks=pytest.mark.longest),
        pytest.param("jax", 3, 4, marks=pytest.mark.longest),
        pytest.param("jax", 1, "epoch", marks=pytest.mark.longest),
    ],
)
def test_a_signal_on_one_rank_stops_all(backend, ranks, save_freq, tmp_path):
    mpi.require(backend)
    env, last = {"KERAS_BACKEND": backend}, ranks - 1
    done = mpi.run(ranks, JOB, "stopped", tmp_path, save_freq, last, env=env, timeout=TIMEOUT)
    assert done.returncode == 143, done.stdout
    line = f"easyddl: received SIGTERM on rank {last}. Saved epoch 2, step "
    assert done.stdout.count(line) == 1, done.stdout
    resume(ranks, tmp_path, save_freq, env, done.stdout)


LAUNCHERS = {
    "mpirun": mpi.command(2, []),
    "easyddl": [sys.executable, "-m", "easyddl", "run", "-np", "2", "--grace", "60"],
}


def signal_a_job(launcher, name, who, workers, folder):
    """Signals a job that trains on what workers make. Returns its status, and what it printed."""
    env = mpi.ANY_BACKEND
    if workers in ("fork", "spawn"):  # a loader of PyTorch has them
        mpi.require("torch")
        env = {"KERAS_BACKEND": "torch"}
    (folder / "temporary").mkdir()
    how = "notified" if name == "SIGUSR1" else "stopped"
    line = [*LAUNCHERS[launcher], sys.executable, JOB, how, folder, "epoch", "test", workers]
    with open(folder / "output", "w+") as output:
        job = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=mpi.environment({**env, "TMPDIR": str(folder / "temporary")}),
            start_new_session=True,
        )
        try:
            limit = time.monotonic() + TIMEOUT
            while len(list(folder.glob("ready-*"))) < 2:
                assert job.poll() is None and time.monotonic() < limit
                time.sleep(0.05)
            processes = [job.pid, *process_tree.descendants(job.pid)]
            assert not set().union(*map(mpi_files.of_rank, processes))  # names in /dev/shm
            for pid in {"launcher": [job.pid], "group": [-job.pid], "all": processes}[who]:
                os.kill(pid, signal.Signals[name])
            status = job.wait(TIMEOUT)
            leftovers.assert_gone(processes)
        finally:
            mpi.stop_session(job)
        output.seek(0)
        return status, output.read()


@pytest.mark.parametrize(
    ("launcher", "name", "who", "workers"),
    [
        pytest.param("easyddl", "SIGTERM", "launcher", "none", marks=pytest.mark.soak),
        *(
            pytest.param(*case.split(), marks=pytest.mark.longest)
            for case in (
                "mpirun SIGTERM launcher none",
                "mpirun SIGTERM group fork",
                "mpirun SIGUSR1 all processes",
                "easyddl SIGTERM all fork",
                "easyddl SIGTERM launcher spawn",
                "easyddl SIGHUP launcher fork",
                "easyddl SIGUSR1 group threads",
                "easyddl SIGUSR1 all processes",
            )
        ),
    ],
)
def test_a_signalled_job_saves_and_leaves_nothing(launcher, name, who, workers, tmp_path):
    if mpi.is_open_mpi() and (launcher, name) == ("mpirun", "SIGTERM"):
        pytest.skip("Open MPI kills the ranks before they have saved a backup")
    status, said = signal_a_job(launcher, name, who, workers, tmp_path)
    saves = f"received {name} on rank 0, 1. Saved epoch 2, step " in said
    assert saves == (name != "SIGHUP") and "went on to its end" not in said, said
    assert status == 128 + signal.Signals[name], said
    left = (tmp_path / "temporary").rglob("*")  # workers of PyTorch leave empty folders
    assert not [path for path in left if path.is_file()]
    if workers == "none":
        resume(2, tmp_path, "epoch", mpi.ANY_BACKEND, said)


@pytest.mark.soak
def test_a_second_signal_ends_at_once(tmp_path):
    done = mpi.run(1, JOB, "stopped", tmp_path, "epoch", "twice", env=mpi.ANY_BACKEND, timeout=50)
    assert done.returncode != 0 and "Saved" not in done.stdout, done.stdout
