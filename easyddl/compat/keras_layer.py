"""Layers, and models as layers."""

import functools

import keras
import numpy as np

from easyddl.compat import patches
from easyddl.compat.names import Name, several

_MOMENTS = Name(
    "keras.layers.BatchNormalization",
    "_moments(inputs, mask)",
    "SyncBatchNormalization cannot compute the moments of all ranks' batches",
)

NAMES = (
    _MOMENTS,
    Name("keras.Layer", "_flatten_layers", "no fit can begin: the layers of a model are not found"),
    *several(
        "keras.Layer",
        {
            "_seed_generators": "all ranks draw the same random numbers, for dropout for example",
            "_non_trainable_variables": "variables that layers compute from their batches differ "
            "by rank",
            "_losses": "losses of add_loss() are not distinguished from regularizers",
            "_loss_ids": "losses of add_loss() are not distinguished from regularizers on JAX",
            "_losses_override": "DDLCallback(scalar_losses='sum') cannot scale losses of "
            "add_loss()",
        },
        is_set=True,
    ),
)


def layers_of(model):
    """Returns a list of a model and all layers in it."""
    return list(model._flatten_layers())


def seed_generators_of(layer):
    """Returns the seed generators of a layer, without those of inner layers."""
    # A layer whose `__init__` does not call Keras's has no such attribute.
    return getattr(layer, "_seed_generators", [])


def non_trainable_variables_of(layer):
    """Returns the variables that a layer itself created with `trainable=False`.

    `layer.non_trainable_variables` also contains those of inner layers, and the weights of frozen
    layers.
    """
    return layer._non_trainable_variables


def has_added(layer, loss):
    """Returns whether a layer itself has added a loss with `add_loss`."""
    # In a pure function, as on JAX, Keras keeps only the ids.
    return id(loss) in layer._loss_ids or any(loss is each for each in layer._losses)


def adds_sum_of_activity(layer):
    """Returns whether a layer has an `activity_regularizer` that adds up a batch, as in Keras 3.5.

    In later versions it adds a mean. The first call needs eager operations.
    """
    return getattr(layer, "activity_regularizer", None) is not None and _adds_sums_of_activities()


@functools.cache
def _adds_sums_of_activities():
    layer = keras.layers.ActivityRegularization(l1=1.0, name="sum_or_mean")
    layer(np.ones((2, 1)))
    return float(layer.losses[0]) > 1.5


def losses_replaced(model, losses):
    """Returns a context in which `model.losses` is another list."""
    return patches.replaced(model, "_losses_override", losses)


def reading_observed(note):
    """Returns a context in which a function receives each list that `losses` of a layer returns."""
    original = keras.Layer.losses

    def losses(self):
        found = original.fget(self)
        note(found)
        return found

    return patches.replaced(keras.Layer, "losses", property(losses))


class MomentsBatchNormalization(keras.layers.BatchNormalization):
    """A `BatchNormalization` whose subclasses may compute the moments of a batch differently."""

    def __init__(self, **arguments):
        _MOMENTS.require()  # otherwise `moments` would silently never be called
        super().__init__(**arguments)

    def moments(self, inputs, mask):
        """Returns the mean and the variance of each channel of a batch.

        Args:
            inputs: Tensor.
            mask: Tensor of booleans, or `None`.
        """
        return super()._moments(inputs, mask)

    def _moments(self, inputs, mask):
        return self.moments(inputs, mask)
