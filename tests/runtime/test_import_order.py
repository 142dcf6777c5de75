"""Ranks import Keras when their script does, in whatever order it imports and sets what it does."""

import pathlib
import sys

import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("import_order_job.py")
# Warnings of easyddl are errors: that a framework ran operations before its cores were divided.
PYTHON = [sys.executable, "-W", "error::UserWarning"]


def run(arguments, **env):
    env = {"KERAS_BACKEND": "", **env}
    whole = mpi.environment(env, shown=("jax", "torch"))
    for name in ("NPROC", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        whole.pop(name, None)
    line = mpi.command(2, [*PYTHON, SCRIPT, *arguments])
    if not whole["KERAS_BACKEND"]:
        del whole["KERAS_BACKEND"]
    return mpi.run_command(line, whole, timeout=180)


def assert_trains(done, backend):
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(f"has trained with {backend}") == 2, done.stdout


@pytest.mark.parametrize(
    "order",
    [
        pytest.param("jax: easyddl KERAS_BACKEND keras", marks=pytest.mark.gate),
        "jax: easyddl rank KERAS_BACKEND jax keras",
        "torch: easyddl torch KERAS_BACKEND keras",
        "tensorflow: easyddl tensorflow keras",
        "tensorflow: tensorflow easyddl keras",
        "tensorflow: easyddl.callbacks keras",
        "torch: KERAS_BACKEND keras easyddl",
    ],
)
def test_a_job_trains(order):
    backend, steps = order.split(": ")
    mpi.require(backend)
    assert_trains(run([backend, *steps.split()]), backend)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_framework_that_the_environment_selects_is_divided_at_its_import(backend):
    mpi.require(backend)
    steps = ("easyddl", "rank", backend, "keras")
    assert_trains(run([backend, *steps], KERAS_BACKEND=backend), backend)


def test_the_settings_file_selects_the_backend(tmp_path):
    mpi.require("torch")
    (tmp_path / "keras.json").write_text('{"backend": "torch"}')
    assert_trains(run(["torch", "easyddl", "torch", "keras"], KERAS_HOME=str(tmp_path)), "torch")


WITHOUT_KERAS = """
import sys
import easyddl as ddl
ddl.barrier()
assert ddl.is_root() == (ddl.rank() == 0) and ddl.size() == 2
assert not {"keras", "jax", "tensorflow", "torch"} & set(sys.modules)
import numpy as np
assert (ddl.allreduce(np.full(3, ddl.rank() + 1.0)) == 1.5).all()
"""


def test_collectives_alone():
    line = mpi.command(2, [sys.executable, "-c", WITHOUT_KERAS])
    done = mpi.run_command(line, mpi.environment(mpi.ANY_BACKEND), timeout=120)
    assert done.returncode == 0, done.stdout


TOO_LATE = """
from easyddl import DDLCallback, DDLGlobalVariablesCallback
import os
os.environ["KERAS_BACKEND"] = "nothing"
import keras
import numpy as np
model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
for _ in range(2):
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0,
              callbacks=[DDLCallback(), DDLGlobalVariablesCallback()])
"""


def test_a_backend_that_is_set_too_late_is_named_once():
    line = mpi.command(2, [sys.executable, "-c", TOO_LATE])
    done = mpi.run_command(line, mpi.environment(mpi.ANY_BACKEND), timeout=120)
    assert done.returncode == 0, done.stdout
    used = mpi.ANY_BACKEND.get("KERAS_BACKEND", "tensorflow")
    text = f"easyddl: warning: KERAS_BACKEND is 'nothing', but Keras uses {used!r}"
    assert done.stdout.count(text) == 1, done.stdout
