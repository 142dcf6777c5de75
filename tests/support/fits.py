"""Fits of a small model with easyddl's callbacks, and what checks of fits ask of the ranks."""

import contextlib
import io
import pathlib
import shutil
import tempfile

import keras
import numpy as np
from mpi4py import MPI

import easyddl as ddl

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
BATCH = 8


def data(steps=3):
    """Data of this rank alone."""
    return data_of(steps, RANK)


def data_of(steps, rank):
    """What `data` returns on a rank."""
    random = np.random.default_rng(rank)
    x = random.standard_normal((BATCH * steps, 6)).astype("float32")
    return x, (x.sum(1) > 0).astype("float32")


def new_model(*, layers=None, optimizer="sgd", **arguments):
    layers = layers or [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((6,)), *layers])
    model.compile(optimizer, "mse", **arguments)
    return model


def both(*mine, **arguments):
    return [ddl.DDLCallback(**arguments), *mine, ddl.DDLGlobalVariablesCallback()]


def fit(model, *callbacks, steps=3, **arguments):
    x, y = data(steps)
    arguments = {"batch_size": BATCH, "verbose": 0, **arguments}
    return model.fit(x, y, callbacks=both(*callbacks), **arguments)


class Spy(keras.callbacks.Callback):
    """Notes the logs that a callback between the two sees."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(dict(logs))


def assert_replicas_are_equal(model):
    everyone = COMM.allgather([w.tobytes() for w in model.get_weights()])
    assert all(theirs == everyone[0] for theirs in everyone)


def fails(action):
    """The exception that each rank raised."""
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def said(act):
    """What this rank prints to standard error meanwhile."""
    with contextlib.redirect_stderr(io.StringIO()) as text:
        act()
    return text.getvalue()


def in_shared_folder(check):
    """Gives a check one folder for all ranks, named on the root."""

    def wrapped():
        folder = COMM.bcast(tempfile.mkdtemp() if RANK == 0 else None)
        check(pathlib.Path(folder))
        COMM.Barrier()
        if RANK == 0:
            shutil.rmtree(folder)

    return wrapped
