"""Prints the losses of two outputs in Keras alone and with easyddl, in one process.

    python tests/benchmarks/output_losses.py

The last batch is smaller than the others, and the weights do not change.
"""

import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

import easyddl as ddl

SAMPLES, BATCH = 10, 4


def losses(callbacks):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    outputs = [keras.layers.Dense(1, name=name)(inputs) for name in ("one", "two")]
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), ["mse", "mae"])
    x = np.random.default_rng(0).standard_normal((SAMPLES, 3)).astype("float32")
    data = {"x": x, "y": [x[:, :1], x[:, 1:2]]}
    history = model.fit(**data, batch_size=BATCH, verbose=0, shuffle=False, callbacks=callbacks)
    return {name: round(values[0], 4) for name, values in history.history.items()}


if __name__ == "__main__":
    print("Keras:  ", losses([]))
    print("easyddl:", losses([ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]))
