"""A model whose weights count how often a training has used each sample."""

import keras
import numpy as np


def _used(y_true, y_pred):
    return -y_pred[:, 0]


def counting_model(samples):
    """A compiled model for the rows of an identity matrix, in which weight i counts row i."""
    model = keras.Sequential([keras.Input((samples,)), keras.layers.Dense(1, use_bias=False)])
    model.layers[0].kernel.assign(np.zeros((samples, 1)))
    # A loss that is a sum: a sample counts the same in a step of any number of samples.
    loss = keras.losses.Loss(reduction="sum")
    loss.call = _used
    model.compile(keras.optimizers.SGD(1.0), loss)
    return model


def uses_of(model):
    """How often each sample was used, as a list."""
    return np.round(model.get_weights()[0].ravel(), 3).tolist()
