"""Trainings that a signal ends, as a scheduler does that takes their hosts back."""

import pathlib
import signal
import subprocess
import sys
import time

import mpi
import pytest

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


EASYDDL_RUN = [sys.executable, "-m", "easyddl", "run", "-np", "2", "--grace", "60"]


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param(mpi.command(2, []), id="mpirun", marks=pytest.mark.longest),
        pytest.param(EASYDDL_RUN, id="easyddl", marks=pytest.mark.soak),
    ],
)
def test_the_launcher_forwards_the_signal(launcher, tmp_path):
    line = [*launcher, sys.executable, JOB, "stopped", tmp_path, "epoch", "test"]
    with open(tmp_path / "output", "w+") as output:
        job = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=mpi.environment(mpi.ANY_BACKEND),
            start_new_session=True,
        )
        try:
            limit = time.monotonic() + TIMEOUT
            while len(list(tmp_path.glob("ready-*"))) < 2:
                assert job.poll() is None and time.monotonic() < limit
                time.sleep(0.05)
            job.send_signal(signal.SIGTERM)
            status = job.wait(TIMEOUT)
        finally:
            mpi.stop_session(job)
        output.seek(0)
        said = output.read()
    assert "received SIGTERM on rank 0, 1. Saved epoch 2, step " in said, said
    assert status == 143 if launcher == EASYDDL_RUN else status != 0, said
    resume(2, tmp_path, "epoch", mpi.ANY_BACKEND, said)


@pytest.mark.soak
def test_a_second_signal_ends_at_once(tmp_path):
    done = mpi.run(1, JOB, "stopped", tmp_path, "epoch", "twice", env=mpi.ANY_BACKEND, timeout=50)
    assert done.returncode != 0 and "Saved" not in done.stdout, done.stdout
