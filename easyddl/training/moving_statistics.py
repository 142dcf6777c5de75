"""Averages the moving statistics of `BatchNormalization` over the ranks."""

import keras

from easyddl.collectives import variables
from easyddl.compat import keras_layer

# All layers have the first two. Only layers that renormalize have the others.
_NAMES = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")


def average_moving_statistics(model, weight=1.0):
    """Replaces the moving statistics of `BatchNormalization` layers by their mean over the ranks.

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
    found = [
        getattr(layer, name, None)
        for layer in keras_layer.layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and not getattr(layer, "is_synchronized_by_easyddl", False)
        for name in _NAMES
    ]
    return [variable for variable in found if variable is not None]
