"""TensorFlow's variables in a layer's attributes. Keras tracks only its own variables."""

import keras
import tensorflow as tf

from easyddl.backends.base import Backend
from easyddl.backends.untracked_state import UntrackedState, variable_of

# `adapt` computes the variables of these layers. They are tables, like their vocabularies.
_ADAPTED = (keras.layers.StringLookup, keras.layers.IntegerLookup)


class TensorFlowUntrackedState(Backend):
    """The untracked state of a `TensorFlowBackend`."""

    def untracked_state(self, layer):
        found = [] if isinstance(layer, _ADAPTED) else _variables_in(vars(layer))
        numbers = [v for v in found if v.dtype.is_floating or v.dtype.is_integer or v.dtype.is_bool]
        if not numbers:
            return UntrackedState()
        tracked = {id(variable.value) for variable in layer.variables}
        own = [v for v in numbers if id(v) not in tracked]
        return UntrackedState(
            others=[variable_of(layer, id(v), LayerVariable, v, layer.name) for v in own]
        )


class LayerVariable:
    """A `tf.Variable` of a layer, with the interface of a Keras variable.

    Args:
        variable: `tf.Variable`.
        layer: String. The name of the layer.
    """

    def __init__(self, variable, layer):
        self.value = variable
        self.name = variable.name.partition(":")[0]
        self.path = f"{layer}/{self.name}"

    @property
    def shape(self):
        return tuple(self.value.shape)

    @property
    def dtype(self):
        return self.value.dtype.name

    def numpy(self):
        return self.value.numpy()

    def assign(self, value):
        self.value.assign(value)


def _variables_in(attribute):
    """Returns the variables in an attribute: itself, or those in a module, a dict or a list."""
    if isinstance(attribute, tf.Variable):
        return [attribute]
    if isinstance(attribute, tf.Module):
        return list(attribute.variables)
    if isinstance(attribute, dict):
        attribute = list(attribute.values())
    if isinstance(attribute, list | tuple):
        return [variable for each in attribute for variable in _variables_in(each)]
    return []
