"""What layers compute from their batches and keep: running sums, codebooks, counters.

Each rank computes it from its own batches. Where the layer tells how the ranks' values become one,
they do at each step, and all ranks hold what one process would. Else they become the root's.
"""

import inspect
import math

import keras
import numpy as np
from keras import ops

from easyddl import backends
from easyddl.collectives import arrays, variables
from easyddl.compat import keras_layer
from easyddl.reducer import allreduce
from easyddl.runtime import notices, world
from easyddl.training.moving_statistics import moving_statistics

_IN_STEP = ("sum", "mean")
_MERGES = (*_IN_STEP, "root")
_AGGREGATIONS = {"sum": "sum", "mean": "mean", "only_first_replica": "root"}

_merges = {}  # by class, of users' own layers


def register_layer(layer_class=None, *, merge):
    """Tells how the ranks' values of a layer's own variables become one.

    It matters for variables that a layer assigns in its `call`, such as a running sum of its
    inputs. A variable with `aggregation="sum"` or `"mean"` (see `keras.Layer.add_weight`) needs
    none of this. Without either, all ranks take the root's values after each epoch, with a warning.

    Args:
        layer_class: Subclass of `keras.Layer`. Left out where it is used as a decorator.
        merge: `"sum"`: what all ranks have added to the variable in a step. `"mean"`: the mean of
            the ranks' values, after each step. `"root"`: rank 0's value, after each epoch. Or a
            dict of these by the variables' names.

    Returns:
        The class.

    Raises:
        TypeError: If `layer_class` is no such class.
        ValueError: If `merge` is none of these.

    Example:
    ```python
    @ddl.register_layer(merge="sum")
    class ComputeSum(keras.Layer):
        ...
    ```
    """
    if layer_class is None:
        return lambda cls: register_layer(cls, merge=merge)
    if not inspect.isclass(layer_class) or not issubclass(layer_class, keras.Layer):
        raise TypeError(
            "`layer_class` must be a subclass of keras.Layer. "
            f"Received: layer_class={layer_class!r}"
        )
    names = list(merge.values()) if isinstance(merge, dict) else [merge]
    if not all(isinstance(name, str) and name in _MERGES for name in names):
        raise ValueError(
            f"`merge` must be one of {_MERGES}, or a dict of them by variable. "
            f"Received: merge={merge!r}"
        )
    _merges[layer_class] = merge
    return layer_class


def batch_states(model):
    """The states of a model's stateful RNNs: a row for each sample of a rank's own batches."""
    layers = [each for each in keras_layer.layers_of(model) if isinstance(each, keras.layers.RNN)]
    states = [each.states for each in layers if each.stateful and each.states is not None]
    return keras.tree.flatten(states)


def merge_in(train_step, model):
    """A model's `train_step` that merges what layers keep, after it has changed the variables.

    Args:
        train_step: The step, in the form that Keras's trainer has on the backend in use.
        model: A Keras model.
    """

    def begin_step():
        merged = [(v, merge) for v, merge in _kept(model) if merge in _IN_STEP]
        merges = [merge for _, merge in merged]
        return [v for v, _ in merged], lambda *values: _merged(merges, *values)

    return backends.require().changing(train_step, model, begin_step)


def _merged(merges, before, after):
    """The values of all ranks, from those that this rank had before a step, and has after it."""
    changes = [
        ops.reshape(ops.cast(_signed(new) - _signed(old), "float32"), (-1,))
        for old, new in zip(before, after, strict=True)
    ]
    ends = np.cumsum([math.prod(value.shape) for value in before]).tolist()
    # The sum of the ones is the number of ranks that have a batch.
    mine = ops.concatenate([*changes, ops.ones((1,), "float32")])
    *totals, ranks = ops.split(allreduce.in_step(mine, "sum"), ends)
    result = []
    for merge, old, total in zip(merges, before, totals, strict=True):
        change = total / ranks if merge == "mean" else total
        old = _signed(old)
        if not keras.backend.is_float_dtype(_dtype(old)):
            change = ops.round(change)
        result.append(old + ops.cast(ops.reshape(change, old.shape), old.dtype))
    return result


def _signed(x):
    """Numbers of which one may be taken from another, which is larger."""
    return ops.cast(x, "int32") if _dtype(x).startswith("uint") else x


def _dtype(x):
    return keras.backend.standardize_dtype(x.dtype)


def take_roots(model, root_rank=0):
    """Gives all ranks the root's values of variables that layers keep, where they differ.

    All ranks must call it together.

    Args:
        model: A built Keras model.
        root_rank: Integer. The rank whose values all get.
    """
    kept = [(v, merge) for v, merge in _kept(model) if merge not in _IN_STEP]
    if world.size() == 1 or not kept:
        return
    mine = np.array([variables.checksum(v) for v, _ in kept], np.int64)
    everyones = arrays.allgather(mine[None])
    differing = [kept[i] for i in np.flatnonzero((everyones != everyones[0]).any(axis=0))]
    if differing:
        variables.broadcast_variables([v for v, _ in differing], root_rank)
    for variable, merge in differing:
        if merge is None:
            _warn(variable)


def taken_from_root(model):
    """The variables that differ by rank until an epoch ends."""
    return [variable for variable, merge in _kept(model) if merge not in _IN_STEP]


def _warn(variable):
    notices.tell_once(
        ("layer", variable.path),
        f"warning: a layer computes its variable {variable.path!r} from its batches, and each rank "
        "has its own. After each epoch all take the root's, which is not what one process would "
        "have. Tell how they become one: by the variable's `aggregation`, or by "
        "ddl.register_layer.",
    )


def _kept(model):
    """The variables that a model's layers may change by themselves, each with how it is merged."""
    left_out = {id(v) for v in (*moving_statistics(model), *batch_states(model))}
    left_out |= {id(v) for metric in model.metrics for v in metric.variables}
    found = {}
    for layer in keras_layer.layers_of(model):
        # Without those of layers that are frozen, which nobody changes.
        for variable in keras_layer.non_trainable_variables_of(layer):
            if id(variable) not in left_out and not isinstance(layer, keras.metrics.Metric):
                found[id(variable)] = variable, _merge_of(layer, variable)
    return list(found.values())


def _merge_of(layer, variable):
    merge = _merges.get(type(layer))
    if isinstance(merge, dict):
        merge = merge.get(variable.name)
    if _dtype(variable) == "bool":
        return "root" if merge is not None else None  # there are no sums of them
    aggregation = getattr(variable, "aggregation", None)
    if merge is None and aggregation != _default_aggregation():
        merge = _AGGREGATIONS.get(aggregation)
    return merge


def _default_aggregation():
    # Early versions of Keras have another one, which so tells nothing.
    parameters = inspect.signature(keras.Variable.__init__).parameters
    return parameters["aggregation"].default if "aggregation" in parameters else None
