"""A job whose script imports easyddl, frameworks and Keras in a given order, and then trains.

Usage: import_order_job.py BACKEND STEP...

The steps, in their order: the name of a library is its import, `rank` is a call of `ddl.rank()`,
and `KERAS_BACKEND` sets that variable to BACKEND. At the end Keras must use BACKEND.
"""

import importlib
import os
import sys

import numpy as np
from telling import tell

RATE = 0.5


def threads_of(framework):
    """How many threads an operation of a framework takes; `None` if nobody has set it."""
    if framework == "jax":
        return os.environ.get("NPROC")
    if framework == "torch":
        return str(sys.modules["torch"].get_num_threads())
    tensorflow = sys.modules["tensorflow"]
    return str(tensorflow.config.threading.get_intra_op_parallelism_threads())


def assert_cores_are_divided(framework):
    from easyddl.runtime import affinity

    found, share = threads_of(framework), affinity.compute_threads()
    assert found == str(share), f"{framework} takes {found} threads, not {share}"


def run(step, backend):
    if step == "KERAS_BACKEND":
        os.environ[step] = backend
    elif step == "rank":
        sys.modules["easyddl"].rank()
        assert "keras" not in sys.modules
    else:
        importlib.import_module(step)
    # From here on an operation of the backend would fix its threads.
    if step == backend and os.environ.get("KERAS_BACKEND", "tensorflow") == backend:
        assert_cores_are_divided(backend)


def train():
    """One step with other data on each rank: its gradient must be the mean of all ranks."""
    import keras

    import easyddl as ddl

    x = [np.full((2, 1), 1.0 + rank, "float32") for rank in range(ddl.size())]
    y = [np.full((2, 1), 3.0 - rank, "float32") for rank in range(ddl.size())]
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.layers.Input((1,)), layer])
    model.compile(keras.optimizers.SGD(RATE), "mse")
    callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
    mine = x[ddl.rank()], y[ddl.rank()]
    model.fit(*mine, batch_size=2, verbose=0, shuffle=False, callbacks=callbacks)
    gradients = [np.mean(-2 * a * b) for a, b in zip(x, y, strict=True)]
    (kernel,) = model.get_weights()
    np.testing.assert_allclose(kernel, [[-RATE * np.mean(gradients)]], rtol=1e-5)


def main(backend, *steps):
    for step in steps:
        run(step, backend)
    used = sys.modules["keras"].backend.backend()
    assert used == backend, used
    assert_cores_are_divided(backend)
    train()
    tell("has trained with", used)


main(*sys.argv[1:])
