"""Synchronizes the state of layers that `adapt` has computed from data.

Vocabularies and bin boundaries are such a state. They are not variables, so the broadcast of the
variables does not include them.
"""

import keras
import numpy as np

from easyddl.collectives import arguments, objects
from easyddl.compat import keras_layer
from easyddl.runtime import console, world

# A `TextVectorization` contains one of these layers.
_LOOKUPS = (keras.layers.StringLookup, keras.layers.IntegerLookup)
_LAYERS = (*_LOOKUPS, keras.layers.Discretization)


def sync_from_root(model, root_rank):
    """Gives all ranks the root's vocabularies and bin boundaries if the ranks' tables differ.

    The tables differ if each rank has adapted a layer to its own shard of the data. The function
    is a collective. Call it before a step is compiled, because the step may contain the tables.

    Args:
        model: A Keras model.
        root_rank: Integer. The rank whose tables all ranks receive.

    Returns:
        Boolean: whether any layer of any rank has changed.
    """
    arguments.check_root(root_rank)
    layers = [each for each in keras_layer.layers_of(model) if isinstance(each, _LAYERS)]
    tables_by_rank = objects.allgather_object([_table_of(layer) for layer in layers])
    root_tables = tables_by_rank[root_rank]
    models_differ = any(len(tables) != len(root_tables) for tables in tables_by_rank)
    if models_differ or all(tables == root_tables for tables in tables_by_rank):
        return False  # the later broadcast of the variables reports models that differ
    for layer, table in zip(layers, root_tables, strict=True):
        if _table_of(layer) != table:
            _set_table(layer, table)
    if world.rank() == root_rank:
        names = [
            layer.name
            for i, layer in enumerate(layers)
            if any(tables[i] != root_tables[i] for tables in tables_by_rank)
        ]
        console.say(
            f"warning: the ranks called `adapt` of {', '.join(names)} with different data. All "
            f"ranks now use the result of rank {root_rank}. Call `adapt` with all data, before "
            "split_data."
        )
    return True


def _table_of(layer):
    """Returns the result of `adapt` as plain values, which can be compared.

    Returns:
        For a `Discretization`, its bin boundaries or `None`. For a lookup layer, a pair of its
        vocabulary and its TF-IDF weights; the weights are `None` if it has none.
    """
    if isinstance(layer, keras.layers.Discretization):
        boundaries = layer.bin_boundaries
        return None if boundaries is None else np.asarray(boundaries).tolist()
    tokens = np.asarray(layer.get_vocabulary(include_special_tokens=False)).tolist()
    if layer.output_mode != "tf_idf" or not tokens:
        return tokens, None
    # The weights of the special tokens come first. `set_vocabulary` creates them itself.
    first = len(layer.get_vocabulary()) - len(tokens)
    return tokens, np.asarray(layer.idf_weights)[first : first + len(tokens)].tolist()


def _set_table(layer, table):
    if isinstance(layer, keras.layers.Discretization):
        layer.bin_boundaries = table
    elif table[0]:
        layer.set_vocabulary(*table)
