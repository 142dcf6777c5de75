"""`easyddl scaling` with real jobs. Its rules: test_scaling_rules.py."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import mpi
import pytest

pytestmark = pytest.mark.mpirun

JOB = pathlib.Path(__file__).with_name("scaling_job.py")
TIMEOUT = 300
BATCH = 8  # that of the job
GRADIENT_BYTES = 4 * (6 * 9 + 9 + 9 + 1)  # of its two dense layers


def line(*arguments):
    return [sys.executable, "-m", "easyddl", "scaling", *map(str, arguments)]


def scale(*arguments, **env):
    return mpi.run_command(line(*arguments), mpi.environment(env, ["matplotlib"]), TIMEOUT)


def scale_job(tmp_path, ranks, *arguments, steps=12, backend="tensorflow", options=(), env=()):
    """Measures the job.

    Returns:
        Pair of the completed process, and the measurements by the number of ranks.
    """
    mpi.require(backend)
    result = tmp_path / "result.json"
    asked = ["-np", *ranks, "--steps", steps, "--warmup", 3, "--json", result, *options]
    job = ["--", sys.executable, JOB, tmp_path, *arguments]
    done = scale(*asked, *job, KERAS_BACKEND=backend, **dict(env))
    found = json.loads(result.read_text())["measurements"] if result.exists() else []
    return done, {each["ranks"]: each for each in found}


def steps_of(folder, ranks):
    return [int((folder / f"steps-{ranks}-{rank}").read_text()) for rank in range(ranks)]


def assert_ended_early(folder, ranks, calls):
    """The job ended after the same step on all ranks, and soon after it had enough of them."""
    taken = steps_of(folder, ranks)
    assert len(set(taken)) == 1 and calls <= taken[0] <= calls + 3, taken
    assert not (folder / f"went on-{ranks}").exists()
    assert not (folder / "caught").exists()


def test_a_script(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    # On two ranks an epoch has five steps, of which the first does not count.
    env = {"TF_NUM_INTRAOP_THREADS": "1"}
    done, found = scale_job(tmp_path, [1, 2], 80, 50, options=["--plot", picture], env=env)
    assert done.returncode == 0, done.stdout
    for ranks, calls in ((1, 15), (2, 17)):
        one = found[ranks]
        assert one["steps"] == len(one["step_seconds"]) == 12
        assert one["samples"] == 12 * BATCH * ranks
        assert one["samples_per_second"] > 0 and one["input"] > 0
        assert one["threads"] == 1 and one["gradient_bytes"] == GRADIENT_BYTES
        assert [host["ranks"] for host in one["hosts"]] == [ranks]
        assert_ended_early(tmp_path, ranks, calls)
    assert found[1]["exposed"] == 0 and 0 < found[2]["exposed"] < 1
    assert 0 <= found[2]["lag"] <= found[2]["exposed"]
    assert found[1]["efficiency"] == 1
    title, header, one, two, empty, sentence = done.stdout.splitlines()
    assert title.startswith("12 steps, after 3 for the warm-up, on 1, 2 ranks: ")
    assert header.split()[:2] == ["ranks", "samples/s"]
    assert one.split()[0] == "1" and two.split()[0] == "2"
    assert empty == "" and sentence.endswith(".")
    assert picture.read_bytes().startswith(b"\x89PNG")
    # A measurement leaves the files of a training alone.
    written = {path.name for path in tmp_path.iterdir() if not path.name.startswith("steps-")}
    assert written == {"result.json", "picture.png"}


def test_steps_whose_callbacks_keras_defers(tmp_path):
    """No step is shorter than the reading of its batch, whenever Keras calls the callbacks."""
    reading = 0.03
    done, found = scale_job(tmp_path, [1, 2], 640, 2, 1, reading, steps=20, backend="jax")
    assert done.returncode == 0, done.stdout
    for ranks, one in found.items():
        assert one["steps"] == 20 and one["samples"] == 20 * BATCH * ranks
        assert min(one["step_seconds"]) >= reading, one
        assert one["seconds"] >= 20 * reading


BACKENDS = ("tensorflow", "jax", "torch")


@pytest.mark.parametrize(
    ("backend", "samples", "execution", "steps", "calls"),
    [
        *[pytest.param(each, 80, 1, 12, 17, marks=pytest.mark.longest) for each in BACKENDS[1:]],
        # Keras takes 40 batches of an epoch in 10 steps, of which the first does not count. It has
        # no such steps on PyTorch.
        *[pytest.param(each, 640, 4, 12, 4, marks=pytest.mark.longest) for each in BACKENDS[:2]],
        # Steps in which a rank has no batch do not count: rank 0 has 41 samples, and rank 1 has 40.
        *[pytest.param(each, 81, 1, 6, None, marks=pytest.mark.soak) for each in BACKENDS],
    ],
)
def test_two_ranks(backend, samples, execution, steps, calls, tmp_path):
    job = samples, 50, execution
    done, found = scale_job(tmp_path, [2], *job, steps=steps, backend=backend)
    assert done.returncode == 0, done.stdout
    assert found[2]["steps"] == steps == execution * len(found[2]["step_seconds"])
    assert found[2]["samples"] == steps * BATCH * 2
    assert 0 < found[2]["exposed"] < 1 and found[2]["input"] > 0
    assert not (tmp_path / "went on-2").exists()
    if calls is not None:
        assert_ended_early(tmp_path, 2, calls)


@pytest.mark.soak
@pytest.mark.parametrize(("epochs", "steps"), [(2, 6), (1, None)])
def test_a_script_that_ends_before_enough_steps(epochs, steps, tmp_path):
    done, found = scale_job(tmp_path, [2], 80, epochs, steps=30)
    if steps is None:
        assert done.returncode == 1 and not found, done.stdout
        assert "ended on 2 ranks after too few steps: 2 could be measured" in done.stdout
        return
    assert done.returncode == 0, done.stdout
    # Of two epochs of five steps, the warm-up of three and the first of the other do not count.
    assert found[2]["steps"] == steps and found[2]["input"] is None
    assert (tmp_path / "went on-2").exists()


@pytest.mark.gate
def test_a_script_that_fails():
    script = "import sys; print('its last words'); sys.exit(7)"
    done = scale("-np", 2, "--", sys.executable, "-c", script)
    assert done.returncode == 7, done.stdout
    assert "failed on 2 ranks with exit status 7. Its last lines:\n" in done.stdout
    assert "    its last words\n" in done.stdout.partition("Its last lines:\n")[2]


def test_a_script_without_fit():
    done = scale("-np", 1, 2, "--", sys.executable, "-c", "print('nothing')")
    assert done.returncode == 1, done.stdout
    assert "ended on 1 rank without training: it never called model.fit()" in done.stdout


def test_ctrl_c_ends_the_ranks(tmp_path):
    script = f"import os, time; open({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w'); time.sleep(300)"
    process = subprocess.Popen(
        line("-np", 2, "--", sys.executable, "-c", script),
        env=mpi.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        limit = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2:
            assert process.poll() is None and time.monotonic() < limit
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        text, _ = process.communicate(timeout=60)
    finally:
        mpi.stop_session(process)
    assert process.returncode == 130, text
    assert b"interrupted; all ranks have been ended" in text
    for path in tmp_path.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.name), 0)
