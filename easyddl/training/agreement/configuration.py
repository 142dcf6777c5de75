"""The configuration of a fit as the script states it: the arguments of `compile`, and `get_config`.

Each rank's step contains its own configuration as constants, for example the momentum and the rate
of a dropout. No broadcast of variables makes these equal. What functions and objects of the script
hold besides is not compared.
"""

import contextlib
import warnings
import zlib

import keras
import numpy as np

from easyddl.collectives import differences
from easyddl.collectives.variables import checksum, sampled
from easyddl.compat import keras_layer, keras_saving, keras_trainer, patches, user_code
from easyddl.runtime import console, notices
from easyddl.runtime.shared_error import comparable
from easyddl.training.state import model_state

# Keras chooses the names itself, ranks may draw different random numbers and have batches of other
# sizes, and a module of PyTorch has its weights in its configuration, which are broadcast.
_IGNORED = (
    *("batch_shape", "batch_size", "build_config", "built", "compile_config", "module", "name"),
    *("seed", "shared_object_id"),
)

# What `adapt` computes: `adapted_layers` gives all ranks the root's.
_ADAPTED = ("vocabulary", "idf_weights", "bin_boundaries", "mean", "variance", "vocabulary_size")

# Longer lists are compared by a checksum: a text of each number would take seconds.
_LONG = 64
_MOST_SHOWN = 80  # characters of a value in a message

_COMPILED = ("loss", "loss_weights", "metrics", "weighted_metrics", "steps_per_execution")

_RATE = "learning_rate"


def sections_of(model):
    """Returns the configuration of a compiled model.

    Args:
        model: A Keras model.

    Returns:
        Dict of sections by name, each a dict of plain values by path. What cannot be serialized is
        left out.
    """
    compiled = keras_trainer.compile_arguments_of(model)
    compiled = {key: compiled.get(key) for key in _COMPILED}
    layers = [
        each
        for each in keras_layer.layers_of(model)
        if not isinstance(each, keras.metrics.Metric | keras.Model)
    ]
    found = {}
    # Once for all layers: a context for each layer would take half of the time.
    with warnings.catch_warnings(), keras_saving.without_tensorflow(), _no_initial_values(layers):
        warnings.simplefilter("ignore")  # what the user's own `get_config` warns of
        found["compile()"] = _flat(_serialized(compiled))
        for i, optimizer in enumerate(model_state.optimizers(model)):
            name = "the optimizer" if i == 0 else f"optimizer {i + 1}"
            found[name] = _flat({"class": type(optimizer).__name__, **_config_of(optimizer)})
        keys = _keys_of(model)
        for i, layer in enumerate(layers):
            config = {**_config_of(layer), **keys.get(id(layer), {})}
            found[f"layer {i + 1}, {type(layer).__name__}"] = _flat(config, _ADAPTED)
    return found


def _keys_of(model):
    """Returns the keys of the layers that the user's models keep in dicts, by the layers' ids.

    A dict that was made from a set of strings has another order in each process.
    """
    found = {}
    for owner in keras_layer.layers_of(model):
        if user_code.is_of_keras(type(owner)):
            continue
        for name, value in vars(owner).items():
            for key, layer in value.items() if isinstance(value, dict) else ():
                if isinstance(layer, keras.Layer):
                    found.setdefault(id(layer), {})[f"key in {name}"] = str(key)
    return found


def compare(by_rank):
    """Compares the sections of all ranks.

    Args:
        by_rank: Dict by section of the list of the ranks' versions: see `differences.gather`.

    Raises:
        ValueError: On all ranks, if what `compile` has received differs.
    """
    rates, of_layers, required = [], [], []
    for name, versions in by_rank.items():
        if differences.are_equal(versions):
            continue
        paths = {path: None for each in versions for path in each or ()}
        for path in paths:
            values = [(each or {}).get(path, "absent") for each in versions]
            if not differences.are_equal(values):
                is_rate = _is_rate(path) and all(isinstance(each, float) for each in values)
                kind = of_layers if name.startswith("layer ") else rates if is_rate else required
                kind.append(f"{name}: {path} is {console.by_rank(map(_shown, values))}")
    if rates:
        notices.tell(
            "warning: the ranks pass different learning rates. DDLGlobalVariablesCallback gives "
            f"all ranks that of the root. {_received(rates)}"
        )
    if of_layers:
        notices.tell(
            "warning: the ranks' layers are configured differently, and train together. "
            f"{_received(of_layers)}"
        )
    if required:
        text = "All ranks must configure the model in the same way, otherwise their weights diverge"
        differences.tell(f"{text}. {_received(required)}", is_error=True)


def _received(found):
    return f"{differences.SAME_ON_ALL_RANKS} Received: {console.first(found, '; and ')}"


def _is_rate(path):
    """Returns whether a path of a section is that of a constant learning rate."""
    *outer, name = path.split(".")
    return name == _RATE and _RATE not in outer  # a schedule may have one, too


def _shown(value):
    """Returns the text of a value for a message. Values that differ have texts that differ."""
    text = repr(value)
    if isinstance(value, float):
        with np.errstate(all="ignore"):
            rounded = np.float32(value)
        return str(rounded) if rounded and np.isfinite(rounded) else text
    if len(text) <= _MOST_SHOWN:
        return text
    return f"{text[:_MOST_SHOWN]}... (checksum {zlib.crc32(text.encode()):08x})"


@contextlib.contextmanager
def _no_initial_values(layers):
    """Returns a context in which the configs of layers lack what their initializers contain.

    The variables are broadcast. Keras would make a list of each matrix of initial values.
    """
    classes = {type(value) for layer in layers for value in vars(layer).values()}
    with contextlib.ExitStack() as stack:
        for cls in classes:
            if issubclass(cls, keras.initializers.Initializer):
                stack.enter_context(patches.replaced(cls, "get_config", lambda self: {}))
        yield


def _serialized(value):
    """Returns the config of an argument of `compile`, without the parts that have none."""
    if isinstance(value, dict):
        return {key: _serialized(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_serialized(inner) for inner in value]
    # The `get_config` of Keras's losses leaves arguments out.
    is_of_keras = isinstance(value, keras.losses.Loss) and user_code.is_of_keras(type(value))
    config = None
    with user_code.suppress():
        config = keras.saving.serialize_keras_object(value)
    return {**(vars(value) if is_of_keras else {}), "config": config}


def _config_of(thing):
    with user_code.suppress():
        if isinstance(thing, keras.layers.TorchModuleWrapper):
            # Its own config contains the weights.
            lines = repr(thing.module).splitlines()
            return {**keras.Layer.get_config(thing), "hyperparameters": lines}
        return thing.get_config()
    if not user_code.is_of_keras(type(thing)):
        return {}
    # A part of it has no `get_config`, such as a schedule of the user's own class.
    inner = getattr(thing, "inner_optimizer", None)
    plain = bool | int | float | str | np.generic
    attributes = {name: each for name, each in vars(thing).items() if isinstance(each, plain)}
    found = {name: each for name, each in attributes.items() if not name.startswith("_")}
    return {**found, **({} if inner is None else {"inner_optimizer": _config_of(inner)})}


def _flat(config, ignored=()):
    """Returns the plain values of a nested config, by path."""
    found = {}
    _collect(config, "", frozenset((*_IGNORED, *ignored)), found)
    return found


def _collect(value, path, ignored, found):
    if isinstance(value, np.ndarray | np.generic) and np.ndim(value) == 0:
        value = value.item()
    if isinstance(value, dict) and value.get("class_name") == "DTypePolicy":
        _collect(value["config"]["name"], path, ignored, found)
    elif isinstance(value, dict) and value.get("class_name") == "__lambda__":
        return  # its code and variables, of which equal ones may have other texts
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in ignored:
                inner_path = path if key in ("config", "class_name") else f"{path}.{key}"
                _collect(inner, inner_path, ignored, found)
    elif value is None or isinstance(value, bool | int | float):
        found[path.lstrip(".")] = value
    elif isinstance(value, str):
        found[path.lstrip(".")] = comparable(value)
    elif isinstance(value, np.ndarray) or (isinstance(value, list | tuple) and len(value) > _LONG):
        found[path.lstrip(".")] = _text_of_array(value)
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            _collect(inner, f"{path}[{i}]", ignored, found)


def _text_of_array(value):
    array = None
    with user_code.suppress():  # rows of different lengths, or tensors
        array = np.asarray(value)
    if array is None or array.dtype.kind not in "biufSU":
        return None
    sample = sampled(array)
    if array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            sample = sample.astype(np.float32)
    return f"values of shape {array.shape} with checksum {checksum(sample):08x}"
