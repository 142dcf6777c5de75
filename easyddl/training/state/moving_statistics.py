"""Averages the moving statistics of batch normalization over the ranks."""

import keras

from easyddl import backends
from easyddl.collectives import variables
from easyddl.compat import keras_layer

# All layers have the first two. Only layers that renormalize have the others.
_NAMES = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")


def average_moving_statistics(model, weight=1.0):
    """Replaces the moving statistics of batch normalization by their mean over the ranks.

    These are the moving statistics of `BatchNormalization` layers, and the running statistics of
    PyTorch's `BatchNorm` and `InstanceNorm` modules.

    Each rank collects the means and variances of its own batches. Therefore ranks with equal
    weights make different predictions. Training does not use the moving statistics, so averaging
    changes only predictions and saved models. The function is a collective.

    Args:
        model: A Keras model. Layers inside its layers are included.
        weight: Float. The weight of this rank's statistics, for example its number of batches
            since the last average.

    Raises:
        RuntimeError: On all ranks, if their models differ.
    """
    variables.average_variables(moving_statistics(model), "moving statistics", weight)


def moving_statistics(model):
    """Returns the variables of a model's moving statistics that differ between ranks."""
    layers = keras_layer.layers_of(model)
    # Layers may share a module.
    untracked = {id(v): v for layer in layers for v in _untracked_statistics(layer)}
    return [*tracked_statistics(model), *untracked.values()]


def tracked_statistics(model):
    """Returns those of `moving_statistics` that are Keras variables."""
    found = [
        getattr(layer, name, None)
        for layer in keras_layer.layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and not getattr(layer, "is_synchronized_by_easyddl", False)
        for name in _NAMES
    ]
    return [variable for variable in found if variable is not None]


def _untracked_statistics(layer):
    return backends.require().untracked_state(layer).statistics
