"""The arrays and tensors that layers keep in attributes, such as tables and constants.

A compiled step contains them as constants. No broadcast of variables makes them equal.
"""

import keras
import numpy as np

from easyddl import backends
from easyddl.collectives import arguments
from easyddl.collectives.variables import checksum
from easyddl.compat import keras_layer
from easyddl.training.state import adapted_layers

_MOST_ELEMENTS = 2**20  # that a checksum reads


def checksums_of(model):
    """Returns a checksum of each array that is an attribute of a layer, by name.

    What has changed between two calls is no constant, such as the last scores of an attention.

    Args:
        model: A Keras model.
    """
    return {
        f"layer {i + 1}, {arguments.comparable_name(layer.path or layer.name)}.{name}": found
        for i, layer in enumerate(keras_layer.layers_of(model))
        if not adapted_layers.has_table(layer)
        for name, value in sorted(vars(layer).items())
        if (found := _checksum(value)) is not None
    }


def _checksum(value):
    """Returns the checksum of an array or a tensor that has values; `None` for other values."""
    if not isinstance(value, np.ndarray):
        backend = backends.backend_of(value)
        is_variable = hasattr(value, "assign")
        if backend is None or is_variable or backend.is_symbolic(value) or backend.has_rows(value):
            return None
        try:
            value = keras.ops.convert_to_numpy(value)
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            return None  # a tensor without an equivalent in NumPy
    if value.dtype == object:
        return None
    return checksum(value.reshape(-1)[:: value.size // _MOST_ELEMENTS + 1])
