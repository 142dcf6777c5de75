"""The configuration of a fit, which must be the same on all ranks: optimizers, loss and layers.

Each rank's step contains its own configuration as constants, for example the momentum and the rate
of a dropout. No broadcast of variables makes these equal.
"""

import contextlib
import functools
import json
import re
import warnings
import zlib

import keras
import numpy as np

from easyddl.collectives.variables import checksum
from easyddl.compat import keras_layer, keras_optimizer, keras_saving, keras_trainer, patches
from easyddl.training import model_state
from easyddl.training.inner_optimizers import inner_optimizers

# Keras chooses the names itself, ranks may draw different random numbers, and a module of PyTorch
# has its weights in its configuration, which are broadcast.
_IGNORED = ("name", "seed", "module", "shared_object_id", "build_config", "compile_config")

# What `adapt` computes: `adapted_layers` gives all ranks the root's.
_ADAPTED = ("vocabulary", "idf_weights", "bin_boundaries", "mean", "variance", "vocabulary_size")

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

# Public attributes in which Keras keeps the state of a layer, a model or an optimizer.
_STATES = (
    *("autocast", "built", "compiled", "loss", "steps_per_execution", "stop_training"),
    *("supports_jit", "training"),
)

# Longer lists are compared by a checksum: a text of each number would take seconds.
_LONG = 64
_MOST_ELEMENTS = 2**20  # of an array that a checksum reads

_COMPILED = ("loss", "loss_weights", "metrics", "weighted_metrics", "steps_per_execution")

_RATE = "learning_rate"

# What `compile` and `get_config` state; the same of layers; and what the user's own objects and
# functions keep in attributes and variables, which may be without effect on the training.
KINDS = REQUIRED, LAYERS, KEPT = "required", "layers", "kept"


def sections_of(model):
    """Returns the configuration of a compiled model.

    Args:
        model: A Keras model.

    Returns:
        Dict by section, which is a pair of `REQUIRED`, `LAYERS` or `KEPT`, and a name. A section
        is a dict of texts by path. What cannot be serialized is left out.
    """
    compiled = keras_trainer.compile_arguments_of(model)
    compiled = {key: compiled.get(key) for key in _COMPILED}
    found, layers, models = {}, [], []
    for each in keras_layer.layers_of(model):
        if not isinstance(each, keras.metrics.Metric):
            (models if isinstance(each, keras.Model) else layers).append(each)
    # Once for all layers: a context for each layer would take half of the time.
    with warnings.catch_warnings(), keras_saving.without_tensorflow(), _no_initial_values(layers):
        warnings.simplefilter("ignore")  # what the user's own `get_config` warns of
        found[REQUIRED, "compile()"] = _flat(_serialized(compiled))
        found[KEPT, "compile()"] = _flat(_kept_by(compiled))
        for i, optimizer in enumerate(model_state.optimizers(model)):
            name = "the optimizer" if i == 0 else f"optimizer {i + 1}"
            config = {"class": type(optimizer).__name__, **_config_of(optimizer)}
            found[REQUIRED, name] = _flat(config)
            found[KEPT, name] = _flat(_kept_by_optimizer(optimizer))
        for i, layer in enumerate(layers):
            name = f"layer {i + 1}, {type(layer).__name__}"
            found[LAYERS, name] = _flat(_config_of(layer), _ADAPTED)
            found[KEPT, name] = _flat(_kept_by_layer(layer))
        for i, each in enumerate(models):
            found[KEPT, f"model {i + 1}, {type(each).__name__}"] = _flat(_kept_by(each))
    return found


def checksums(sections):
    """Returns a checksum of each section, by which ranks find those that differ."""
    return {name: zlib.crc32(json.dumps(each).encode()) for name, each in sections.items()}


def is_rate(path):
    """Returns whether a path of a section is that of a constant learning rate."""
    *outer, name = path.split(".")
    return name == _RATE and _RATE not in outer  # a schedule may have one, too


@contextlib.contextmanager
def _no_initial_values(layers):
    """Returns a context in which the configs of layers lack what their initializers contain.

    The variables are broadcast. Keras would make a list of each matrix of initial values.
    """
    values = [value for layer in layers for value in vars(layer).values()]
    classes = {type(each) for each in values if isinstance(each, keras.initializers.Initializer)}
    with contextlib.ExitStack() as stack:
        for cls in classes:
            stack.enter_context(patches.replaced(cls, "get_config", lambda self: {}))
        yield


def _serialized(value):
    """Returns the config of an argument of `compile`, without the parts that have none."""
    if isinstance(value, dict):
        return {key: _serialized(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_serialized(inner) for inner in value]
    if _is_lambda(value):
        return _code_of(value)
    # The `get_config` of Keras's losses leaves arguments out.
    is_of_keras = isinstance(value, keras.losses.Loss) and not _is_own(value)
    return {**(vars(value) if is_of_keras else {}), "config": _config_by_keras(value)}


def _config_by_keras(value):
    with contextlib.suppress(Exception):
        return keras.saving.serialize_keras_object(value)
    return None


def _is_lambda(value):
    return getattr(value, "__name__", None) == "<lambda>" and hasattr(value, "__code__")


def _code_of(function):
    """Returns what a function does. Keras also serializes its variables."""
    code = function.__code__
    return {"code": repr(code.co_code), "names": code.co_names, "constants": code.co_consts}


def _is_own(value):
    """Returns whether the class of an object is the user's own."""
    return type(value).__module__.partition(".")[0] not in ("keras", "easyddl", "builtins")


def _kept_by(value):
    """Returns what functions and objects of the user's own classes keep beside their configs."""
    if isinstance(value, dict):
        return {key: _kept_by(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_kept_by(inner) for inner in value]
    if isinstance(value, functools.partial):
        passed = {"args": value.args, "keywords": value.keywords}
        return {**_kept_by(value.func), **passed}
    if hasattr(value, "__code__"):
        return _variables_of(value)
    return _attributes_of(value) if _is_own(value) else {}


def _kept_by_optimizer(optimizer):
    found = _kept_by(optimizer)
    for i, each in enumerate((optimizer, *inner_optimizers(optimizer))):
        found[f"{'inner_optimizer.' * i}{_RATE}"] = _kept_by(keras_optimizer.learning_rate_of(each))
    return found


def _kept_by_layer(layer):
    """Returns what a layer of the user's own class, and the functions in any layer, keep."""
    found = _kept_by(layer)
    for name, value in vars(layer).items():
        if name.startswith("_") or name.endswith("_initializer") or not _computes(value):
            continue
        if not hasattr(type(layer), name):  # a method that Keras or easyddl wraps
            found[name] = _kept_by(value)
            if _is_lambda(value):
                found[name].update(_code_of(value))
    return found


def _computes(value):
    """Returns whether an attribute of a layer is a part of what the layer computes."""
    kinds = (functools.partial, keras.constraints.Constraint, keras.regularizers.Regularizer)
    return hasattr(value, "__code__") or isinstance(value, kinds)


def _variables_of(function):
    """Returns the variables of the function around a function, and its defaults, by name."""
    code, found = function.__code__, {}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell may be empty
            found[name] = cell.cell_contents
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    found.update(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    return {**found, **(function.__kwdefaults__ or {})}


def _attributes_of(thing):
    """Returns the attributes of an object of the user's own class, by name."""
    attributes = getattr(thing, "__dict__", {})
    if isinstance(thing, keras.losses.Loss):
        return attributes
    return {name: each for name, each in attributes.items() if _is_plain_attribute(name, each)}


def _is_plain_attribute(name, value):
    """Returns whether an attribute is a number or a text that the user may have passed."""
    is_plain = isinstance(value, bool | int | float | str | np.generic)
    return is_plain and not name.startswith("_") and name not in _STATES


def _config_of(thing):
    with contextlib.suppress(Exception):  # of the user's own `get_config` or `__repr__`
        if isinstance(thing, keras.layers.TorchModuleWrapper):
            # Its own config contains the weights.
            lines = _ADDRESS.sub("", repr(thing.module)).splitlines()
            return {**keras.Layer.get_config(thing), "hyperparameters": lines}
        return thing.get_config()
    if _is_own(thing):
        return {}
    # A part of it has no `get_config`, such as a schedule of the user's own class.
    inner = getattr(thing, "inner_optimizer", None)
    found = {name: each for name, each in vars(thing).items() if _is_plain_attribute(name, each)}
    return {**found, **({} if inner is None else {"inner_optimizer": _config_of(inner)})}


def _flat(config, ignored=()):
    """Returns the plain values of a nested config as texts, by path."""
    found = {}
    _collect(config, "", frozenset((*_IGNORED, *ignored)), found)
    return found


def _collect(value, path, ignored, found):
    if isinstance(value, dict) and value.get("class_name") == "DTypePolicy":
        _collect(value["config"]["name"], path, ignored, found)
    elif isinstance(value, dict) and value.get("class_name") == "__lambda__":
        return  # Equal functions may have other texts. See `_code_of`.
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in ignored:
                inner_path = path if key in ("config", "class_name") else f"{path}.{key}"
                _collect(inner, inner_path, ignored, found)
    elif (text := _text_of(value)) is not None:
        found[path.lstrip(".")] = text
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _collect(inner, f"{path}[{i}]", ignored, found)


def _text_of(value):
    """Returns the text of a plain value, an array or a long list; `None` for other values."""
    if isinstance(value, np.ndarray | np.generic) and np.ndim(value) == 0:
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, float):
        return _text_of_float(value)
    if isinstance(value, np.ndarray) or (isinstance(value, list | tuple) and len(value) > _LONG):
        return _text_of_array(value)
    return None


def _text_of_float(value):
    """Returns the shortest text that tells a number from all other numbers of a float32.

    One rank may have a number as a NumPy scalar of 32 bits, and another one as a Python float.
    """
    with np.errstate(all="ignore"):
        rounded = np.float32(value)
    return str(rounded) if rounded and np.isfinite(rounded) else repr(value)


def _text_of_array(value):
    try:
        array = np.asarray(value)
    except Exception:  # rows of different lengths, or tensors
        return None
    if array.dtype.kind not in "biufSU":
        return None
    sample = array.reshape(-1)[:: array.size // _MOST_ELEMENTS + 1]
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            sample = sample.astype(np.float32)
    return f"values of shape {array.shape} with checksum {checksum(sample):08x}"
