"""Numbers of batches that differ by the rank, and fits on them."""

import warnings

import keras
import numpy as np
import tensorflow as tf
from fits import SIZE, both

N = 3  # samples in a batch


def batches_of(count, seed=0, size=N):
    """Splits all batches among the ranks in turns: one list per rank."""
    random = np.random.default_rng([seed, count])
    all_batches = []
    for _ in range(count):
        x = random.standard_normal((size, 5)).astype("float32")
        all_batches.append((x, np.sin(x.sum(1, keepdims=True)).astype("float32")))
    return [all_batches[rank::SIZE] for rank in range(SIZE)]


def new_model(optimizer=None, layers=None, loss="mse", **arguments):
    keras.utils.set_random_seed(1)
    layers = layers or [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((5,)), *layers])
    model.compile(optimizer or keras.optimizers.SGD(0.1, momentum=0.9), loss, **arguments)
    return model


def dataset(batches):
    """Of a length that nobody knows."""
    signature = (tf.TensorSpec((None, 5), "float32"), tf.TensorSpec((None, 1), "float32"))
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)


def fit(model, batches, *callbacks, uneven="join", **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras is surprised that data end
        return model.fit(
            dataset(batches), shuffle=False, verbose=0, callbacks=both(*callbacks, uneven=uneven),
            **arguments,
        )  # fmt: skip
