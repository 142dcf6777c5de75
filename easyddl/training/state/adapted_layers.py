"""Synchronizes the state of layers that `adapt` has computed from data.

Vocabularies, bin boundaries, and the means and variances of `Normalization` are such a state. They
are not variables, or a layer keeps what it has computed from its variables outside of them. So the
broadcast of the variables does not include them.
"""

import collections

import keras
import numpy as np

from easyddl import backends
from easyddl.collectives import arguments, arrays, differences
from easyddl.compat import keras_layer
from easyddl.runtime import console, world

_ROUNDING = 1e-5  # relative, of moments that hosts have added up in another order


def sync_from_root(model, root_rank):
    """Gives all ranks the root's vocabularies, bin boundaries and moments if the ranks' differ.

    The tables differ if each rank has adapted a layer to its own shard of the data. The function
    is a collective. Call it before a step is compiled, because the step may contain the tables.

    Args:
        model: A Keras model.
        root_rank: Integer. The rank whose tables all ranks receive.

    Returns:
        Boolean: whether any layer of any rank has changed.
    """
    arguments.check_root(root_rank)
    layers = [each for each in keras_layer.layers_of(model) if has_table(each)]
    mine = {i: _kind_of(layer).table(layer) for i, layer in enumerate(layers)}
    by_rank = differences.gather({"layers": len(layers), **mine})
    by_rank = {i: each for i, each in by_rank.items() if any(t != each[0] for t in each)}
    if "layers" in by_rank:
        return False  # the later broadcast of the variables reports models that differ
    for i, tables in by_rank.items():
        if mine[i] != tables[root_rank]:
            _kind_of(layers[i]).set_table(layers[i], tables[root_rank])
    names = [
        layers[i].name
        for i, tables in by_rank.items()
        if not differences.are_equal(tables, _ROUNDING)
    ]
    if names and world.rank() == root_rank:
        console.say(
            f"warning: the ranks called `adapt` of {', '.join(names)} with different data. All "
            f"ranks now use the result of rank {root_rank}. Call `adapt` with all data, before "
            "split_data."
        )
    return bool(by_rank)


def derive_again(model):
    """Computes again what layers have computed from variables that were broadcast since.

    Collective if the model has such layers.

    Args:
        model: A built Keras model.

    Returns:
        Boolean: whether any layer of any rank has changed.
    """
    layers = [
        each
        for each in keras_layer.layers_of(model)
        if isinstance(each, keras.layers.Normalization)
    ]
    if not layers:
        return False
    before = [_moments(layer) for layer in layers]
    for layer in layers:
        layer.finalize_state()  # does nothing if the script passed the moments
    changes = [_moments(layer) for layer in layers] != before
    # A rank that has loaded the variables has changed before, and its functions are as old.
    return bool(arrays.allreduce(np.array(changes), "max"))


def has_table(layer):
    """Returns whether a layer keeps what `adapt` has computed."""
    return _kind_of(layer) is not None


def _boundaries(layer):
    """Returns the bin boundaries of a `Discretization`, or `None`."""
    boundaries = layer.bin_boundaries
    return None if boundaries is None else np.asarray(boundaries).tolist()


def _set_boundaries(layer, boundaries):
    layer.bin_boundaries = boundaries


def _vocabulary(layer):
    """Returns the vocabulary of a lookup layer and its TF-IDF weights, `None` if it has none."""
    tokens = np.asarray(layer.get_vocabulary(include_special_tokens=False)).tolist()
    if layer.output_mode != "tf_idf" or not tokens:
        return tokens, None
    # The weights of the special tokens come first. `set_vocabulary` creates them itself.
    first = len(layer.get_vocabulary()) - len(tokens)
    return tokens, np.asarray(layer.idf_weights)[first : first + len(tokens)].tolist()


def _set_vocabulary(layer, vocabulary):
    if vocabulary[0]:
        layer.set_vocabulary(*vocabulary)


def _moments(layer):
    """Returns the moments of a `Normalization`, and those that the script has passed, by name.

    It returns `None` if the layer has none, or symbolic ones, because Keras built it in a trace.
    """
    if layer.mean is None or not _has_values(layer.mean):
        return None
    names = ("mean", "variance", "input_mean", "input_variance")
    values = {name: getattr(layer, name) for name in names}
    return {
        name: np.asarray(keras.ops.convert_to_numpy(value), "float32").tolist()
        for name, value in values.items()
        if value is not None
    }


def _has_values(tensor):
    backend = backends.backend_of(tensor)
    return backend is None or not backend.is_symbolic(tensor)


def _set_moments(layer, moments):
    if moments is None or not layer.built:
        return
    arrays = {name: np.array(value, "float32") for name, value in moments.items()}
    if "input_mean" in arrays:  # no variables
        layer.input_mean, layer.input_variance = arrays["input_mean"], arrays["input_variance"]
        layer.mean = keras.ops.convert_to_tensor(arrays["mean"], layer.compute_dtype)
        layer.variance = keras.ops.convert_to_tensor(arrays["variance"], layer.compute_dtype)
    else:
        layer.adapt_mean.assign(arrays["mean"].reshape(layer.adapt_mean.shape))
        layer.adapt_variance.assign(arrays["variance"].reshape(layer.adapt_variance.shape))
        layer.finalize_state()


_Kind = collections.namedtuple("_Kind", ["table", "set_table"])

# How the result of `adapt` is read from each kind of layer, and set. A `TextVectorization` contains
# a lookup layer.
_KINDS = {
    keras.layers.StringLookup: _Kind(_vocabulary, _set_vocabulary),
    keras.layers.IntegerLookup: _Kind(_vocabulary, _set_vocabulary),
    keras.layers.Discretization: _Kind(_boundaries, _set_boundaries),
    keras.layers.Normalization: _Kind(_moments, _set_moments),
}


def _kind_of(layer):
    """Returns the kind of a layer that has `adapt`, or `None`."""
    return next((kind for layers, kind in _KINDS.items() if isinstance(layer, layers)), None)
