"""Gradients of TensorFlow's that hold some rows of a table, and trainings with them."""

import contextlib
import functools
import itertools

import keras
import numpy as np
import tensorflow as tf
from fits import COMM, RANK, assert_replicas_are_equal

from easyddl.reducer.gradient_reducer import GradientReducer

ROWS = 20  # of a table

in_a_graph = functools.partial(tf.function, autograph=False)


def squared_error(**arguments):
    return keras.losses.MeanSquaredError(dtype="float64", **arguments)


def squaring():
    return keras.optimizers.Adam(0.01)


def fit_alone(model, parts, epochs=1):
    """What one process does with the batches of all ranks that have one, step by step."""
    model.run_eagerly = True  # which is sooner than to trace it
    for _ in range(epochs if RANK == 0 else 0):
        for batches in itertools.zip_longest(*parts):
            there = [each for each in batches if each is not None]
            model.train_on_batch(*(np.concatenate(arrays) for arrays in zip(*there, strict=True)))


def difference(weights, expected):
    """The largest one, over the largest weight, of the tensor where that is largest."""
    return max(
        np.abs(weight - want).max() / np.abs(want).max()
        for weight, want in zip(weights, expected, strict=True)
    )


def assert_equal_to_one_process(model, alone):
    """`alone` is trained on the root."""
    assert_replicas_are_equal(model)
    everyone = COMM.allgather([np.asarray(v.numpy()).tobytes() for v in model.optimizer.variables])
    assert all(theirs == everyone[0] for theirs in everyone)
    if RANK == 0:
        found = difference(model.get_weights(), alone.get_weights())
        assert found <= 1e-10, found
        taken = [int(each.optimizer.iterations.numpy()) for each in (model, alone)]
        assert taken[0] == taken[1], taken


def new_variable(width=3, dtype="float32", rows=ROWS):
    return keras.Variable(np.zeros((rows, width)), dtype=dtype, name=f"v{width}")


@contextlib.contextmanager
def averaging(*arguments, **named):
    average = GradientReducer(*arguments, **named)
    try:
        yield average
    finally:
        average.close()
