"""The values that layers keep besides their variables, such as means that `adapt` has computed.

A compiled step contains them as constants. No broadcast of variables makes them equal.
"""

import contextlib
import dis
import functools
import inspect
import itertools
import types
import zlib
from typing import NamedTuple

import keras
import numpy as np

from easyddl import backends
from easyddl.collectives import arguments
from easyddl.collectives.variables import checksum
from easyddl.compat import keras_layer
from easyddl.training import adapted_layers

_MOST_VALUES = 5000  # of one attribute; a list may be long
_PLAIN = (int, str, types.NoneType)  # most attributes of Keras's layers
_LIBRARIES = ("easyddl", "jax", "keras", "numpy", "tensorflow", "torch")
_OF_MODULES = ("_buffers", "_modules", "_parameters")  # variables, and modules of their own
_DESCRIPTIONS = ("dtype", "ndim", "shape", "size")  # attributes of an array that are not its values


class Constants(NamedTuple):
    """Checksums of what the layers of a model keep, by name.

    Attributes:
        arrays: Dict. NumPy arrays, and tensors of Keras's own layers.
        others: Dict. Numbers, tensors of the user's own layers, and arrays that functions use. A
            call of the layer may have left them, such as attention scores, or it may use an array's
            shape alone.
    """

    arrays: dict
    others: dict


def of(model):
    """Returns the `Constants` of a model."""
    found = Constants({}, {})
    for i, layer in enumerate(keras_layer.layers_of(model)):
        path = arguments.comparable_name(layer.path or layer.name)
        attributes, is_own = _attributes_of(layer)
        for name, value in sorted(attributes.items()):
            for checksums, those in zip(_checksums(value, is_own), found, strict=True):
                if checksums:
                    text = repr(checksums)
                    those[f"layer {i + 1}, {path}.{name}"] = zlib.crc32(text.encode())
    return found


def _attributes_of(layer):
    """Returns what may hold constants: attributes by name, and whether they are the user's own."""
    if isinstance(layer, keras.layers.TorchModuleWrapper):
        attributes = {
            f"{path}.{name}".lstrip("."): value
            for path, module in layer.module.named_modules()
            if not _is_of_library(module) and not isinstance(module, keras.Layer)
            for name, value in vars(module).items()
            if name not in _OF_MODULES
        }
        return attributes, True
    is_own, is_model = not _is_of_library(layer), isinstance(layer, keras.Model)
    left_out = _names_of_keras(is_model).union(adapted_layers.unused_by_steps(layer))
    attributes = {
        name: value
        for name, value in vars(layer).items()
        # Keras's own private attributes of a model hold the state of a fit in progress, and its
        # functions are those of steps.
        if not isinstance(value, _PLAIN)
        and name not in left_out
        and (not name.startswith("_") or (is_own and not is_model))
        and not (is_model and isinstance(value, types.FunctionType))
    }
    return attributes, is_own


@functools.cache
def _names_of_keras(is_model):
    """Returns the names of the attributes that each layer or model has."""
    base = keras.Model if is_model else keras.Layer
    return frozenset(vars(base(name="easyddl")))


def _is_of_library(thing):
    cls = thing if isinstance(thing, types.FunctionType) else type(thing)
    return (cls.__module__ or "").partition(".")[0] in _LIBRARIES  # `None` for code of `exec`


def _checksums(value, is_own):
    """Returns what is in an attribute: two lists, as the fields of `Constants`.

    Args:
        value: The value of the attribute.
        is_own: Boolean. Whether the layer is of a class of the user. Of Keras's layers only arrays
            and functions of the user are of interest.
    """
    arrays, others = [], []
    remaining, functions = [(value, False)], set()
    for _ in range(_MOST_VALUES):
        if not remaining:
            break
        value, is_used = remaining.pop()
        if isinstance(value, types.FunctionType):
            if not _is_of_library(value) and value not in functions:
                functions.add(value)
                remaining += [(each, True) for each in _values_used_by(value)]
        elif isinstance(value, np.ndarray) or _is_tensor(value):
            is_sure = not is_used and (isinstance(value, np.ndarray) or not is_own)
            (arrays if is_sure else others).extend(_checksums_of_array(value))
        elif is_own or is_used:
            if isinstance(value, float | np.floating):
                others.append(repr(value))
            remaining += [(each, is_used) for each in _items_of(value)]
    return arrays, others


def _checksums_of_array(value):
    with contextlib.suppress(Exception):  # some tensors have no equivalent in NumPy
        array = keras.ops.convert_to_numpy(value)
        return [checksum(array)] if array.dtype != object else []
    return []


def _items_of(value):
    """Returns the first values in a container, in an order that is the same on all ranks."""
    if isinstance(value, dict):
        items = itertools.islice(value.items(), _MOST_VALUES)
        return [each for _, each in sorted(items, key=lambda item: str(item[0]))]
    if isinstance(value, list | tuple):
        return list(itertools.islice(value, _MOST_VALUES))
    return []


def _values_used_by(function):
    """Returns the values of the variables around a function that it uses, such as an array."""
    used = []
    instructions = [*dis.get_instructions(function), None]
    for each, following in itertools.pairwise(instructions):
        is_description = following is not None and following.argval in _DESCRIPTIONS
        if each.opname in ("LOAD_GLOBAL", "LOAD_DEREF") and not is_description:
            used.append(each.argval)
    found = {}
    with contextlib.suppress(ValueError):  # a cell may be empty
        around = inspect.getclosurevars(function)
        found = {**around.globals, **around.nonlocals}
    return [found[name] for name in sorted(set(used)) if name in found]


def _is_tensor(value):
    """Returns whether a value is a tensor of the backend that has values, and is no variable."""
    backend = backends.backend_of(value)
    return backend is not None and not (
        hasattr(value, "assign") or backend.is_symbolic(value) or backend.has_rows(value)
    )
