"""State that layers compute from their batches: running sums, codebooks, counters.

Each rank computes it from its own batches. If the layer declares how to merge the ranks' values,
they are merged at every step, and all ranks hold the values that one process would compute.
Otherwise all ranks take the root's values at the end of an epoch.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar, overload

import keras
import numpy as np
from keras import ops

from easyddl import backends
from easyddl.collectives import arrays, variables
from easyddl.compat import keras_layer
from easyddl.reducer import allreduce
from easyddl.runtime import notices, world

_Merge: TypeAlias = Literal["sum", "mean", "root"]
_Layer = TypeVar("_Layer", bound=type)

_IN_STEP = ("sum", "mean")
_MERGES = (*_IN_STEP, "root")
_AGGREGATIONS = {"sum": "sum", "mean": "mean", "only_first_replica": "root"}

# The moving statistics of batch normalization. Only layers that renormalize have the last three.
_STATISTICS = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")

_merges: dict[type, _Merge | dict[str, _Merge]] = {}  # by the class of a user's layer


@overload
def register_layer(layer_class: _Layer, *, merge: _Merge | dict[str, _Merge]) -> _Layer: ...


@overload
def register_layer(
    layer_class: None = None, *, merge: _Merge | dict[str, _Merge]
) -> Callable[[_Layer], _Layer]: ...


def register_layer(
    layer_class: type | None = None, *, merge: _Merge | dict[str, _Merge]
) -> type | Callable[[Any], Any]:
    """Declares how the ranks' values of a layer's own variables are merged.

    Use it for variables that a layer assigns in its `call`, such as a running sum of its inputs. A
    variable with `aggregation="sum"` or `"mean"` (see `keras.Layer.add_weight`) does not need it.
    It also declares the merge of a layer's `tf.Variable`s, and of the buffers of the modules in a
    subclass of `keras.layers.TorchModuleWrapper`; the running statistics of batch normalization are
    always averaged. Without either declaration, all ranks take the root's values after each epoch,
    and rank 0 prints a warning.

    Args:
        layer_class: Subclass of `keras.Layer`. Omit it to use the function as a decorator.
        merge: `"sum"` adds what all ranks have added to the variable in a step. `"mean"` takes the
            mean of the ranks' values after each step. `"root"` takes rank 0's value after each
            epoch. A dict gives one of these for each variable, by the name of the variable or
            buffer.

    Returns:
        The class.

    Raises:
        TypeError: If `layer_class` is not a subclass of `keras.Layer`.
        ValueError: If `merge` has another value.

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
            f"`merge` must be one of {_MERGES}, or a dict of them by the variables' names. "
            f"Received: merge={merge!r}"
        )
    _merges[layer_class] = merge
    return layer_class


def batch_states(model):
    """Returns the states of a model's stateful RNNs.

    They contain a row for each sample of a rank's own batches, so they differ between ranks.
    """
    layers = [each for each in keras_layer.layers_of(model) if isinstance(each, keras.layers.RNN)]
    states = [each.states for each in layers if each.stateful and each.states is not None]
    return keras.tree.flatten(states)


def tracked_statistics(model):
    """Returns those of `model_state.moving_statistics` that are Keras variables."""
    found = [
        getattr(layer, name, None)
        for layer in keras_layer.layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and not getattr(layer, "is_synchronized_by_easyddl", False)
        for name in _STATISTICS
    ]
    return [variable for variable in found if variable is not None]


def merging_train_step(train_step, model):
    """Wraps a model's `train_step` so that it merges the state of layers after each step.

    Args:
        train_step: The step, in the form that Keras's trainer has on the backend in use.
        model: A Keras model.

    Returns:
        The new `train_step`.
    """

    def begin_step():
        found = [*_tracked_state(model), *_untracked_state(model, of_registered_layers=True)]
        merged = [(v, merge) for v, merge in found if merge in _IN_STEP]
        merges = [merge for _, merge in merged]
        return [v for v, _ in merged], lambda *values: _merged(merges, *values)

    return backends.require().changing(train_step, model, begin_step)


def _merged(merges, before, after):
    """Merges the values of all ranks after a step.

    Args:
        merges: List of `"sum"` or `"mean"`, one for each variable.
        before: List of tensors. The values before the step, which are equal on all ranks.
        after: List of tensors. This rank's values after the step.

    Returns:
        List of tensors. The merged values.
    """
    changes = [
        ops.reshape(ops.cast(_signed(new) - _signed(old), "float32"), (-1,))
        for old, new in zip(before, after, strict=True)
    ]
    ends = np.cumsum([math.prod(value.shape) for value in before]).tolist()
    # Appends a 1, so that the sum also counts the ranks that have a batch.
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
    """Converts unsigned integers to signed ones, so that differences can be negative."""
    return ops.cast(x, "int32") if _dtype(x).startswith("uint") else x


def _dtype(x):
    return keras.backend.standardize_dtype(x.dtype)


def sync_from_root(model, root_rank=0):
    """Broadcasts the root's values of layer state that is not merged at every step.

    Only variables that differ between ranks are broadcast. The function is a collective.

    Args:
        model: A built Keras model.
        root_rank: Integer. The rank whose values all ranks receive.
    """
    synced = [(v, merge) for v, merge in _state_variables(model) if merge not in _IN_STEP]
    if world.size() == 1 or not synced:
        return
    mine = np.array([variables.checksum(variables.value_of(v)) for v, _ in synced], np.int64)
    checksums = arrays.allgather(mine[None])
    differing = [synced[i] for i in np.flatnonzero((checksums != checksums[0]).any(axis=0))]
    if differing:
        variables.broadcast_variables([v for v, _ in differing], root_rank)
    for variable, merge in differing:
        if merge is None:
            _warn(variable)


def synced_at_epoch_end(model):
    """Returns the variables that may differ between ranks until `sync_from_root` is called."""
    return [variable for variable, merge in _state_variables(model) if merge not in _IN_STEP]


def _warn(variable):
    notices.tell_once(
        ("layer", variable.path),
        f"warning: a layer computes its variable {variable.path!r} from its batches, so the "
        "variable differs between ranks. After each epoch all ranks take the root's value, which "
        "differs from the value that one process would compute. Declare how to merge the ranks' "
        "values, with the variable's `aggregation` or with ddl.register_layer.",
    )


def _state_variables(model):
    """Returns the state that a model's layers may change themselves.

    Returns:
        List of pairs: a variable, and its merge, which is `None` if none is declared.
    """
    return [*_tracked_state(model), *_untracked_state(model)]


def _tracked_state(model):
    """Returns those of `_state_variables` that are Keras variables."""
    left_out = {id(v) for v in (*tracked_statistics(model), *batch_states(model))}
    left_out |= {id(v) for metric in model.metrics for v in metric.variables}
    found = {}
    for layer in keras_layer.layers_of(model):
        # Does not include the weights of frozen layers, which do not change.
        for variable in keras_layer.non_trainable_variables_of(layer):
            if id(variable) not in left_out and not isinstance(layer, keras.metrics.Metric):
                found[id(variable)] = variable, _merge_of(layer, variable)
    return list(found.values())


def _untracked_state(model, of_registered_layers=False):
    """Returns those of `_state_variables` that are no Keras variables.

    Args:
        model: A Keras model.
        of_registered_layers: Boolean. Whether to leave out layers without a declared merge, whose
            many modules would be searched.
    """
    found = {}
    for layer in keras_layer.layers_of(model):
        if of_registered_layers and type(layer) not in _merges:
            continue
        state = backends.require().untracked_state(layer)
        found.update({id(v): (v, _merge_of(layer, v)) for v in state.others})
        # Ranks that have run the same steps have counted the same number of batches.
        found.update({id(v): (v, "root") for v in state.counters})
    return list(found.values())


def _merge_of(layer, variable):
    merge = _merges.get(type(layer))
    if isinstance(merge, dict):
        merge = merge.get(variable.name)
    if _dtype(variable) == "bool":
        return "root" if merge is not None else None  # booleans have no sum
    aggregation = getattr(variable, "aggregation", None)
    if merge is None and aggregation != _default_aggregation():
        merge = _AGGREGATIONS.get(aggregation)
    return merge


def _default_aggregation():
    # The default of early versions of Keras differs, so it must not count as a declaration.
    parameters = inspect.signature(keras.Variable.__init__).parameters
    return parameters["aggregation"].default if "aggregation" in parameters else None
