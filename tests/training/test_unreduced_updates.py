"""Updates outside of `fit` are said to train each rank alone, and only where they do."""

import pathlib

import mpi
import pytest

pytestmark = pytest.mark.mpirun

JOB = pathlib.Path(__file__).with_name("updates_job.py")

OF_KERAS = "a Keras optimizer applied gradients outside of model.fit() without reducing them"
OF_TORCH = "an optimizer of the framework applied gradients outside of model.fit()"
AFTER_AVERAGES = ", after it last averaged the weights: every rank trained alone"
OF_FIT = "model.fit() took steps without reducing gradients"

EVERYWHERE = {
    "on_batch_times_1": None,  # as a check whether a step runs
    "on_batch_times_2": OF_KERAS,
    "on_batch_after_a_fit": OF_KERAS,
    "loop": OF_KERAS,
    "each": None,
    "compiled": None,
    "on_batch_wrapped": None,
}
ON_TORCH = {
    "on_batch_averaged": None,
    "on_batch_averaged_too_early": OF_KERAS + AFTER_AVERAGES,
    "on_batch_in_a_callback": OF_KERAS,
    "on_batch_with_other_reductions": OF_KERAS,
    "at_once": None,
    "gathered": None,
    "gathered_something_else": OF_KERAS,
    "on_batch_on_the_root": None,
    "fit": None,
    "plain_fit": OF_FIT,
    "fit_with_the_last_callback_alone": OF_FIT,
    "native": OF_TORCH,
    "native_reduced": None,
}


def cases():
    for backend in ("tensorflow", "jax", "torch"):
        for how, said in EVERYWHERE.items():
            gate = [pytest.mark.gate] if (backend, how) == ("torch", "on_batch_times_2") else []
            yield pytest.param(backend, how, said, marks=gate)
    for how, said in ON_TORCH.items():
        gate = [pytest.mark.gate] if how == "native" else []
        yield pytest.param("torch", how, said, marks=gate)


@pytest.mark.parametrize(("backend", "how", "said"), list(cases()))
def test_updates_outside_of_fit(backend, how, said):
    mpi.require(backend)
    ranks = 3 if backend == "torch" else 2
    done = mpi.run(ranks, JOB, how, env={"KERAS_BACKEND": backend})
    assert done.returncode == 0 and done.stdout.count("done") == ranks, done.stdout
    assert done.stdout.count("every rank trained alone") == (said is not None), done.stdout
    assert said is None or said in done.stdout, done.stdout
    assert "differs between the ranks" not in done.stdout, done.stdout
    assert "variables differ" not in done.stdout, done.stdout


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_updates_of_weights_that_were_not_broadcast(backend):
    mpi.require(backend)
    how = "on_batch_wrapped_of_other_weights"
    done = mpi.run(2, JOB, how, env={"KERAS_BACKEND": backend})
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stdout
    assert done.stdout.count("variables differ at the first update") == 1, done.stdout
    assert "kernel on rank 1 is not rank 0's" in done.stdout, done.stdout
