"""What layers have learnt by `adapt` before a training, and keep outside of variables."""

import keras
import numpy as np

from easyddl.collectives import arrays, objects
from easyddl.compat import keras_layer
from easyddl.runtime import console, world

# That of a `TextVectorization` is a layer of its own.
_LOOKUPS = (keras.layers.StringLookup, keras.layers.IntegerLookup)
_LAYERS = (*_LOOKUPS, keras.layers.Discretization)


def share(model, root_rank):
    """Gives all ranks the root's vocabularies and bin boundaries, where theirs differ.

    Each rank may have adapted a layer to its own part of the data. All ranks must call it
    together, before a step is compiled, which may hold the tables.

    Args:
        model: A Keras model.
        root_rank: Integer. The rank whose layers stay what they are.

    Returns:
        Boolean: whether any layer of any rank has changed.
    """
    arrays.check_root(root_rank)
    layers = [each for each in keras_layer.layers_of(model) if isinstance(each, _LAYERS)]
    everyones = objects.allgather_object([_table_of(layer) for layer in layers])
    theirs = everyones[root_rank]
    has_others = any(len(each) != len(theirs) for each in everyones)
    if has_others or all(each == theirs for each in everyones):
        return False  # other models are an error, which the broadcast of variables tells
    for layer, table in zip(layers, theirs, strict=True):
        if _table_of(layer) != table:
            _set_table(layer, table)
    if world.rank() == root_rank:
        names = [
            layer.name
            for i, layer in enumerate(layers)
            if any(each[i] != theirs[i] for each in everyones)
        ]
        console.say(
            f"warning: the ranks have adapted {', '.join(names)} to different data. All go on with "
            f"what rank {root_rank} has found. Call `adapt` on all data, before split_data."
        )
    return True


def _table_of(layer):
    """What a layer has learnt, in plain values that can be compared; `None` if nothing."""
    if isinstance(layer, keras.layers.Discretization):
        boundaries = layer.bin_boundaries
        return None if boundaries is None else np.asarray(boundaries).tolist()
    tokens = np.asarray(layer.get_vocabulary(include_special_tokens=False)).tolist()
    if layer.output_mode != "tf_idf" or not tokens:
        return tokens, None
    # Before those of the tokens stand those of the special ones, which `set_vocabulary` makes.
    first = len(layer.get_vocabulary()) - len(tokens)
    return tokens, np.asarray(layer.idf_weights)[first : first + len(tokens)].tolist()


def _set_table(layer, table):
    if isinstance(layer, keras.layers.Discretization):
        layer.bin_boundaries = table
    elif table[0]:
        layer.set_vocabulary(*table)
