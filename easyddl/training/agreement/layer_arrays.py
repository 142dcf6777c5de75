"""The arrays and tensors that layers keep in attributes, such as tables and constants.

A compiled step contains them as constants. No broadcast of variables makes them equal.
"""

import keras
import numpy as np

from easyddl import backends
from easyddl.collectives import arguments
from easyddl.collectives.variables import checksum, sampled
from easyddl.compat import keras_layer, user_code
from easyddl.training.state import adapted_layers


def checksums_of(model):
    """Returns a checksum of each array that is an attribute of a layer, by name.

    What has changed between two calls is no constant, such as the last scores of an attention.

    Args:
        model: A Keras model.
    """
    found, other_classes = {}, set()  # a layer has about 70 attributes, of few classes
    for i, layer in enumerate(keras_layer.layers_of(model)):
        if adapted_layers.has_table(layer):
            continue
        for name, value in vars(layer).items():
            if type(value) in other_classes:
                continue
            if not isinstance(value, np.ndarray) and backends.backend_of(value) is None:
                other_classes.add(type(value))
            elif (number := _checksum(value)) is not None:
                path = arguments.comparable_name(layer.path or layer.name)
                found[f"layer {i + 1}, {path}.{name}"] = number
    return found


def _checksum(value):
    """Returns the checksum of an array or a tensor; `None` if it has no values of its own."""
    if not isinstance(value, np.ndarray):
        backend = backends.require()
        if hasattr(value, "assign") or backend.is_symbolic(value) or backend.has_rows(value):
            return None
        with user_code.suppress():
            value = keras.ops.convert_to_numpy(value)
    # A tensor may have no equivalent in NumPy.
    if not isinstance(value, np.ndarray) or value.dtype == object:
        return None
    return checksum(sampled(value))
