"""What `BatchNormalization` has gathered on each rank, brought together."""

import keras
import numpy as np

from easyddl import collectives, world


def average_moving_statistics(model):
    """Gives all ranks the mean of their `BatchNormalization` layers' moving statistics.

    Each rank gathers the means and variances of its own batches, so that ranks that have equal
    weights predict differently. Training does not look at them: averaging changes what is
    predicted and saved alone. All ranks must call it.

    Args:
        model: A Keras model. Its layers' layers count too.

    Raises:
        RuntimeError: On all ranks, if their models differ.
    """
    variables = _moving_statistics(model)
    if world.size() == 1 or not variables:
        return
    # One array for all. In float64 the mean of equal float32 numbers is just that number.
    values = [np.asarray(variable.numpy()).astype(np.float64) for variable in variables]
    means = collectives.allreduce(np.concatenate([value.reshape(-1) for value in values]))
    ends = np.cumsum([value.size for value in values])
    for variable, value, mean in zip(variables, values, np.split(means, ends[:-1]), strict=True):
        variable.assign(mean.reshape(value.shape).astype(np.asarray(variable.numpy()).dtype))


def _moving_statistics(model):
    layers = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization)
    ]
    names = ("moving_mean", "moving_variance", "moving_stddev")  # the last one if renormalizing
    found = [getattr(layer, name, None) for layer in layers for name in names]
    return [variable for variable in found if variable is not None]
