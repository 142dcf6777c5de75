"""What `BatchNormalization` has gathered on each rank, brought together."""

import keras

from easyddl.collectives import variables
from easyddl.compat import keras_layer

# The first two of all layers; the others of those that renormalize.
_NAMES = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")


def average_moving_statistics(model, weight=1.0):
    """Gives all ranks the mean of their `BatchNormalization` layers' moving statistics.

    Each rank gathers the means and variances of its own batches, so that ranks that have equal
    weights predict differently. Training does not look at them: averaging changes what is
    predicted and saved alone. All ranks must call it.

    Args:
        model: A Keras model. Its layers' layers count too.
        weight: Float. What this rank's count for, such as its number of batches since the last
            time.

    Raises:
        RuntimeError: On all ranks, if their models differ.
    """
    variables.average_variables(moving_statistics(model), "moving statistics", weight)


def moving_statistics(model):
    """The variables in which a model's layers gather what differs by rank."""
    found = [
        getattr(layer, name, None)
        for layer in keras_layer.layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and not getattr(layer, "is_synchronized_by_easyddl", False)
        for name in _NAMES
    ]
    return [variable for variable in found if variable is not None]
