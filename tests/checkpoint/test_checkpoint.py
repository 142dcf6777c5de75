"""Checkpoints: what survives, and what training makes of it."""

import io
import json
import pathlib
import zipfile

import h5py
import mpi
import numpy as np
import pytest

pytestmark = pytest.mark.mpirun

JOB = pathlib.Path(__file__).with_name("checkpoint_job.py")
REST_JOB = pathlib.Path(__file__).with_name("rest_of_epoch_job.py")
SAVE_JOB = pathlib.Path(__file__).with_name("save_job.py")


@pytest.mark.parametrize(
    ("ranks", "save_freq", "victim"),
    [pytest.param(2, "epoch", "all", marks=pytest.mark.soak), (3, 3, 0)],
)
def test_a_killed_job_goes_on_bit_by_bit(ranks, save_freq, victim, tmp_path):
    options = {"env": mpi.ANY_BACKEND, "timeout": 120}
    killed = mpi.run(ranks, JOB, "killed", tmp_path, save_freq, victim, **options)
    assert killed.returncode != 0 and "is killed after" in killed.stdout, killed.stdout
    assert list((tmp_path / "backup").glob("backup-*")), killed.stdout
    again = mpi.run(ranks, JOB, "again", tmp_path, save_freq, **options)
    said = f"It was killed so:\n{killed.stdout}\nIt went on so:\n{again.stdout}"
    assert again.returncode == 0 and again.stdout.count("the same bits") == ranks, said


def test_a_rank_that_is_killed_while_it_saves_leaves_the_file_before(tmp_path):
    def job(what):
        return mpi.run(2, SAVE_JOB, what, tmp_path, env=mpi.ANY_BACKEND, timeout=120)

    def weight():
        with zipfile.ZipFile(tmp_path / "m.keras") as file:
            assert file.testzip() is None
            inner = io.BytesIO(file.read("model.weights.h5"))
        with h5py.File(inner) as weights:
            return weights["layers/dense/vars/0"][()].tolist()

    killed = job("killed")
    assert killed.returncode != 0, killed.stdout
    assert weight() == [[1.0]], killed.stdout
    assert list(tmp_path.glob(".new-m.keras-*")), list(tmp_path.iterdir())
    again = job("again")
    assert again.returncode == 0, again.stdout
    assert again.stdout.count("saved without a start of MPI") == 2, again.stdout
    assert weight() == [[3.0]]
    assert [path.name for path in tmp_path.iterdir()] == ["m.keras"]


class Alone:
    """The same training in NumPy, by one process, in float64."""

    def __init__(self):
        numbers = np.random.default_rng(8)
        self.x = numbers.standard_normal((96, 6)).astype("float32").astype("float64")
        self.y = (self.x.astype("float32") @ np.arange(6) + numbers.standard_normal(96)).astype(
            "float32"
        )
        self.weights = np.array([1.0] * 6 + [0.0])
        self.velocity = np.zeros(7)

    def train(self, batches, size, rates):
        """Makes some steps with batches of a size, each with its rate.

        Returns:
            Array of the error of each sample, before the step that it is in.
        """
        inputs = np.hstack([self.x, np.ones((96, 1))])
        errors = []
        for batch, rate in zip(batches, rates, strict=True):
            here = slice(batch * size, (batch + 1) * size)
            error = inputs[here] @ self.weights - self.y[here]
            gradient = 2 * inputs[here].T @ error / size
            self.velocity = 0.9 * self.velocity - rate * gradient
            self.weights = self.weights + self.velocity
            errors.append(error)
        return np.concatenate(errors)


# Of the backends only TensorFlow has no metrics yet where an epoch is resumed in its middle.
@pytest.mark.parametrize(
    "backend", ["tensorflow", *(pytest.param(b, marks=pytest.mark.soak) for b in ("jax", "torch"))]
)
def test_it_goes_on_with_half_of_the_ranks(backend, tmp_path):
    """A training of 4 ranks, on 2: to 1e-5 what one process makes of the same samples."""
    mpi.require(backend)
    for ranks in (4, 2):
        env = {"KERAS_BACKEND": backend}
        done = mpi.run(ranks, JOB, "resized", tmp_path, env=env, timeout=200)
        assert done.returncode == 0, done.stdout
    found = json.loads((tmp_path / "found-2.json").read_text())

    # Each rank's batch stays: an epoch has 6 steps of 16 samples, and then 12 of 8.
    same = Alone()
    same.train([*range(6)] * 2, 16, [0.04] * 12)
    same.velocity /= 2  # it holds the rates of past steps
    errors = np.split(same.train([*range(12)] * 2, 8, [0.02] * 24), 2)
    assert_found(found["same"], same, errors, epochs=[2, 3], iterations=12 + 24, rate=0.02)

    # Each rank's batch is twice as large: nothing changes.
    doubled = Alone()
    errors = np.split(doubled.train([*range(6)] * 4, 16, [0.04] * 24), 4)[2:]
    assert_found(found["doubled"], doubled, errors, epochs=[2, 3], iterations=24, rate=0.04)

    # A schedule, from the middle of an epoch on: after 9 steps of 16 samples, which are 18 of 8.
    schedule = Alone()
    schedule.train([*range(6), 0, 1, 2], 16, [0.04 / (1 + 0.5 * i / 6) for i in range(9)])
    rest = range(18, 48)
    rates = [0.02 / (1 + 0.5 * i / 12) for i in rest]
    # The metrics of the first epoch are those of its second half: they start again.
    errors = np.split(schedule.train([i % 12 for i in rest], 8, rates), [48, 48 + 96])
    rate = 0.02 / (1 + 0.5 * 48 / 12)
    assert_found(found["schedule"], schedule, errors, epochs=[1, 2, 3], iterations=48, rate=rate)

    # All samples on one of the 2 ranks. What was used is not known, so the epoch begins again.
    on_the_root = Alone()
    on_the_root.train([*range(6), 0, 1, 2], 16, [0.04] * 9)
    errors = np.split(on_the_root.train([*range(6)] * 3, 16, [0.04] * 18), 3)
    assert_found(found["on_the_root"], on_the_root, errors, [1, 2, 3], iterations=27, rate=0.04)

    # The 4 ranks have used 4 * 2 * 4 of the 97 samples of the second of 3 epochs.
    assert_each_sample_once(tmp_path / "uses-2.json", used=32)


@pytest.mark.full
@pytest.mark.parametrize("starts", [((3, 2), (2, 1), (2, 1), (4,)), ((2, 1), (1,))], ids=len)
@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_an_epoch_goes_on_with_several_numbers_of_ranks(backend, starts, tmp_path):
    mpi.require(backend)
    for ranks, *step in starts:
        env = {"KERAS_BACKEND": backend}
        done = mpi.run(ranks, REST_JOB, tmp_path, *step, env=env, timeout=200)
        assert done.returncode == 0, done.stdout
    # What the 3 ranks have used is used again where it is not known, and then what 2 ranks have.
    assert_each_sample_once(tmp_path / f"uses-{ranks}.json", used=None)


def assert_each_sample_once(path, used):
    """Asserts that each of 3 epochs has used each sample once.

    Args:
        path: Path of the numbers of uses of each sample, by kind of data.
        used: Integer. The number of samples that were used again where they are not known.
    """
    found = json.loads(path.read_text())
    again = np.array(found.pop("derived"))
    for kind, uses in found.items():
        np.testing.assert_array_equal(uses, np.full(len(uses), 3.0), err_msg=kind)
    assert (again >= 3).all() and used in (None, (again - 3).sum()), again


def assert_found(found, alone, errors, epochs, iterations, rate):
    """Asserts that a job has found what a process alone has, whose errors are those by epoch."""
    assert (found["epochs"], found["iterations"]) == (epochs, iterations)
    np.testing.assert_allclose(found["rate"], rate, rtol=1e-6)
    np.testing.assert_allclose(found["mae"], [np.abs(e).mean() for e in errors], rtol=1e-5)
    np.testing.assert_allclose(found["loss"], [np.square(e).mean() for e in errors], rtol=1e-5)
    np.testing.assert_allclose(found["weights"], alone.weights, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["velocity"], alone.velocity, rtol=1e-4, atol=1e-5)
