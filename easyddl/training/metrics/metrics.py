"""Merges metrics over all ranks. The result is that of all samples, not a mean of results.

The variables of a metric are sums, for example the number of correct predictions and the number of
predictions. If they are added over the ranks and the result is computed once, it equals that of one
process with all data.
"""

from __future__ import annotations

import collections
import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, overload

import keras
import numpy as np

from easyddl.collectives import arguments, arrays, objects
from easyddl.collectives.variables import checksum
from easyddl.compat import keras_metric, user_code
from easyddl.runtime import notices, world
from easyddl.training.metrics import metric_starts

_Merge: TypeAlias = Literal["sum", "mean", "min", "max"]
# The last takes the states of all ranks, each a list of arrays, and returns the merged state.
_Merges: TypeAlias = _Merge | dict[str, _Merge] | Callable[[list[list[np.ndarray]]], Sequence[Any]]
_Metric = TypeVar("_Metric", bound=type)

_OPS = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max}

_merges: dict[type, _Merges] = {}  # by the class of a user's metric


@overload
def register_metric(metric_class: _Metric, *, merge: _Merges) -> _Metric: ...


@overload
def register_metric(
    metric_class: None = None, *, merge: _Merges
) -> Callable[[_Metric], _Metric]: ...


def register_metric(
    metric_class: type | None = None, *, merge: _Merges
) -> type | Callable[[Any], Any]:
    """Declares how the ranks' states of your own metric are merged.

    Keras's own metrics do not need it: their variables are sums, which are added. For other
    metrics the meaning of the variables is unknown. Without this declaration, `DDLCallback` takes
    the mean of the ranks' results, and rank 0 prints a warning.

    Args:
        metric_class: Subclass of `keras.metrics.Metric`. Omit it to use the function as a
            decorator.
        merge: `"sum"`, `"mean"`, `"min"` or `"max"`, for all variables of the metric. A dict gives
            one of these for each variable, by the variable's name. A function takes a list of
            states, one for each rank, and returns the merged state. A state is a list of NumPy
            arrays in the order of `metric.variables`.

    Returns:
        The class.

    Raises:
        TypeError: If `metric_class` is not a subclass of `keras.metrics.Metric`.
        ValueError: If `merge` has another value.

    Example:
    ```python
    @ddl.register_metric(merge="max")
    class WorstError(keras.metrics.Metric):
        ...
    ```
    """
    if metric_class is None:
        return lambda cls: register_metric(cls, merge=merge)
    if not inspect.isclass(metric_class) or not issubclass(metric_class, keras.metrics.Metric):
        raise TypeError(
            "`metric_class` must be a subclass of keras.metrics.Metric. "
            f"Received: metric_class={metric_class!r}"
        )
    names = list(merge.values()) if isinstance(merge, dict) else [merge]
    if not callable(merge) and not all(isinstance(n, str) and n in _OPS for n in names):
        raise ValueError(
            f"`merge` must be one of {tuple(_OPS)}, a dict of them by the variables' names, or a "
            f"function. Received: merge={merge!r}"
        )
    _merges[metric_class] = merge
    return metric_class


def _place_of(metric):
    """Returns the key by which metrics have the same order on all ranks.

    A script may pass dicts that it has made from sets. Names that differ in numbers only may be
    Keras's own, of which another rank has others in the same order.
    """
    numbers = [int(number) for number in re.findall(r"\d+", metric.name)]
    return arguments.comparable_name(metric.name), numbers


def shared_logs(model, logs, has_samples=True, on_equal_states=None):
    """Returns the logs of all ranks' samples instead of those of this rank's samples.

    The function is a collective. Afterwards the metrics of `model` contain the merged state.

    Args:
        model: A compiled Keras model, whose metrics contain the state of this rank's samples.
        logs: Dict that this rank's last step returned; empty if this rank ran no step.
        has_samples: Boolean. Whether this rank has computed metrics. For example, only the root
            may validate.
        on_equal_states: Function of a number, or `None`. It is called on all ranks if the states
            that they add up are equal, as those of the same samples are. Other states have another
            number.

    Returns:
        Dict of floats, and of NumPy arrays for metrics with several values, equal on all ranks.

    Raises:
        ValueError: On all ranks, if an entry is a mean over the ranks and its shapes differ.
    """
    merged = sorted(leaves(model.metrics), key=_place_of)
    # Copies the values, because a result of Keras may be a variable that changes below.
    before = _arrays(_flat(model.get_metrics_result()))
    logs = _arrays(_flat(logs)) if has_samples else {}
    differs = bool(logs) and set(logs) != set(before)
    exact = [m for m in merged if is_exact(m)]
    any_differs, equal_states = _sum_variables(exact, has_samples, differs)
    if equal_states is not None and on_equal_states is not None:
        on_equal_states(equal_states)
    _merge_states([m for m in merged if type(m) in _merges], has_samples)
    unknown = [m for m in merged if not _has_known_merge(m)]
    _warn_of_unknown_merge(unknown)
    after = _flat(model.get_metrics_result())
    if unknown:
        # Metrics that cannot be merged: the mean over the ranks that have samples. For merged
        # metrics the ranks' values are equal, and so is their mean.
        after = {**after, **mean_logs(after if has_samples else {})}
    if not any_differs:
        return {key: _plain(value) for key, value in after.items()}
    return _logs_of_custom_step(logs, before, after)


def _logs_of_custom_step(logs, before, after):
    """Returns the logs of a `train_step` that adds entries of its own.

    An entry that is the result of a metric is exact. Any other entry is the mean over the ranks.

    Args:
        logs: Dict of arrays. The entries that this rank's last step returned.
        before: Dict of arrays. The results of this rank's metrics before they were merged.
        after: Dict. The results of the merged metrics.
    """
    own = {key for key, value in logs.items() if not _is_result(value, before.get(key))}
    own_of_any_rank = set().union(*objects.allgather_object(own))
    return {
        key: mean if key in own_of_any_rank or key not in after else _plain(after[key])
        for key, mean in mean_logs(logs).items()
    }


def _is_result(value, result):
    """Returns whether an entry of the last step is the result of a metric.

    A compiled step may round it.
    """
    if value is None or result is None or value.shape != result.shape:
        return False
    return np.allclose(value, result, rtol=1e-5, equal_nan=True)


_COUNTS = (
    keras.metrics.FalseNegatives,
    keras.metrics.FalsePositives,
    keras.metrics.Sum,
    keras.metrics.TrueNegatives,
    keras.metrics.TruePositives,
)


def counts_of(model):
    """Returns the metrics of a model whose results may grow with the number of samples.

    These are Keras's counts, and metrics whose states are added up by a declaration.

    Args:
        model: A compiled Keras model.
    """
    return [each for each in leaves(model.metrics) if isinstance(each, _COUNTS) or _adds_up(each)]


def _adds_up(metric):
    merge = _merges.get(type(metric))
    names = merge.values() if isinstance(merge, dict) else (merge,)
    return callable(merge) or "sum" in names


def is_exact(metric):
    """Returns whether a metric's variables are sums, because Keras's own method updates them."""
    return user_code.is_of_keras(type(metric).update_state) and type(metric) not in _merges


def _has_known_merge(metric):
    return is_exact(metric) or type(metric) in _merges


def leaves(metrics):
    """Returns the metrics whose states are merged, without containers of other metrics."""
    found = []
    for metric in metrics:
        if user_code.is_of_keras(type(metric)):
            inner = getattr(metric, "metrics", None)  # Keras's container of compiled metrics
            found.extend([metric] if inner is None else leaves(inner))
        else:
            found.extend(_inner_metrics(metric) or [metric])
    return found


def _inner_metrics(metric):
    """Returns the metrics inside a user's metric if merging them merges the whole metric.

    This needs a known merge for each of them, and no variables of the metric's own. The result of
    a metric must not be computed from its own variables on one rank and merged inner metrics.
    """
    inner = leaves(keras_metric.metrics_in(metric))
    is_container = type(metric) not in _merges and not keras_metric.own_variables_of(metric)
    return inner if is_container and all(map(_has_known_merge, inner)) else []


def _summands(metric, has_samples):
    """Returns what this rank contributes to the sums of a metric's variables over all ranks.

    The sums are the state with which the metric began, once, and what each rank has added to it.

    Args:
        metric: A Keras metric.
        has_samples: Boolean. Whether this rank has added anything.

    Returns:
        List of arrays of float64.
    """
    found = []
    for value, start in zip(
        metric_starts.values_of(metric), metric_starts.start_of(metric), strict=True
    ):
        value, start = np.asarray(value, np.float64), np.asarray(start, np.float64)
        end = value if has_samples else start
        found.append(end if world.is_root() else end - start)
    return found


@world.on_all_ranks("adding up the metrics")
def _sum_variables(metrics, has_samples, differs):
    """Replaces the variables of metrics by their sums over all ranks. Collective.

    Args:
        metrics: List of Keras metrics.
        has_samples: Boolean. Whether this rank has computed metrics.
        differs: Boolean. A flag that is exchanged together with the sums.

    Returns:
        Pair: whether `differs` is true on any rank, and the number of the states if those of all
        ranks are equal, otherwise `None`.
    """
    variables = [v for metric in metrics for v in metric.variables]
    values = [each.ravel() for metric in metrics for each in _summands(metric, has_samples)]
    number = _number_of(values)
    values = [np.array([differs, number, number**2], np.float64), *values]
    names = ", ".join(
        f"{arguments.comparable_name(m.name)} {[tuple(v.shape) for v in m.variables]}"
        for m in metrics
    )
    text = f"adding up the metrics ({names})"
    (total,) = arrays.reduce_arrays([np.concatenate(values)], "float64", "sum", text)
    ends = np.cumsum([math.prod(v.shape) for v in variables])[:-1]
    for variable, value in zip(variables, np.split(total[3:], ends), strict=False):
        variable.assign(value.reshape(variable.shape).astype(variable.numpy().dtype))
    # Numbers are equal if their mean square is the square of their mean. These are exact integers.
    are_equal = world.size() * int(total[2]) == int(total[1]) ** 2
    return total[0] > 0, number if are_equal else None


def _number_of(values):
    """Returns a number below 2**20 by which the ranks compare states.

    Only sums of other than integers, such as a loss, tell samples apart. Counts are often equal, so
    each rank then returns another number.
    """
    state = np.concatenate([*values, np.zeros(0)])
    if np.isfinite(state).all() and (state != np.rint(state)).any():
        return checksum(state) % 2**20
    return world.rank()


def _merge_states(metrics, has_samples):
    """Replaces the variables of registered metrics by the merged states of all ranks."""
    if not metrics:
        return
    states = [metric_starts.values_of(metric) for metric in metrics]
    summands = [_summands(metric, has_samples) for metric in metrics]
    by_rank = objects.allgather_object((states if has_samples else None, summands))
    for i, metric in enumerate(metrics):
        of_ranks = [states[i] for states, _ in by_rank if states]
        merged = _merged(metric, of_ranks, [summands[i] for _, summands in by_rank])
        for variable, value in zip(metric.variables, merged, strict=True):
            variable.assign(np.asarray(value, variable.numpy().dtype))
        if callable(_merges[type(metric)]):
            metric_starts.keep_own_state(metric, metric_starts.values_of(metric), states[i])


def _merged(metric, states, summands):
    """Merges the states of a registered metric.

    Args:
        metric: A Keras metric.
        states: List of states, one for each rank with samples. A state is a list of arrays.
        summands: List of the results of `_summands` on all ranks.
    """
    merge = _merges[type(metric)]
    if callable(merge):
        return merge(states)
    result = []
    for k, variable in enumerate(metric.variables):
        name = merge if isinstance(merge, str) else merge.get(variable.name)
        if name is None:
            raise ValueError(
                f"`merge` of {type(metric).__name__} must name each of its variables. "
                f"Received: merge={merge!r}, without {variable.name!r}"
            )
        of_ranks = summands if name == "sum" else states
        result.append(_OPS[name](np.stack([each[k] for each in of_ranks]), axis=0))
    return result


def _warn_of_unknown_merge(metrics):
    for metric in metrics:
        notices.tell_once(
            ("metric", metric.name),
            f"warning: the metric {metric.name!r} is not Keras's own ({type(metric).__name__}). "
            "Its value is the mean of the ranks' results. Declare how to merge the ranks' states "
            "with ddl.register_metric.",
        )


def mean_logs(logs):
    """Returns the mean of each entry over the ranks that have it: see `means`. Collective.

    Args:
        logs: Dict of this rank's logs.
    """
    return means(gathered_logs(logs))


def gathered_logs(logs):
    """Gathers the entries of all ranks. Collective.

    Args:
        logs: Dict of this rank's logs.

    Returns:
        Dict by entry, equal on all ranks. Each value is a dict by the rank that has the entry, of
        arrays; `None` for other than numbers.
    """
    values = collections.defaultdict(dict)
    for rank, theirs in enumerate(objects.allgather_object(_arrays(logs))):
        for key, value in theirs.items():
            values[key][rank] = value
    return values


def means(gathered):
    """Returns the mean of each entry over the ranks that have it. Omits other than numbers.

    Args:
        gathered: The result of `gathered_logs`.

    Returns:
        Dict of floats, and of NumPy arrays for entries with several values, equal on all ranks.

    Raises:
        ValueError: On all ranks, if the shapes of an entry differ.
    """
    not_numbers = [key for key, each in gathered.items() if any(v is None for v in each.values())]
    _warn_of_omitted(not_numbers)
    return {key: _mean(key, each) for key, each in gathered.items() if key not in not_numbers}


def _arrays(logs):
    return {key: as_array(value) for key, value in logs.items()}


def _mean(key, by_rank):
    """Returns the mean of an entry.

    Args:
        key: String. The name of the entry.
        by_rank: Dict of arrays, by rank.
    """
    shapes = {rank: value.shape for rank, value in by_rank.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(
            f"{key!r} must have the same shape on all ranks, because the logs contain the mean of "
            "the ranks' values. If it is your own metric, declare how to merge the ranks' states "
            f"with ddl.register_metric. Received: {key!r} with shapes by rank: {shapes}"
        )
    return _plain(np.mean(list(by_rank.values()), axis=0, dtype=np.float64))


def _warn_of_omitted(keys):
    for key in keys:
        notices.tell_once(
            ("log", key),
            f"warning: the logs' entry {key!r} is not a number, so it has no mean over the ranks. "
            "It is left out.",
        )


def _flat(logs):
    """Flattens nested dicts of logs, as Keras does for callbacks."""
    flat = {}
    for key, value in sorted(logs.items()):
        flat.update(_flat(value) if isinstance(value, dict) else {key: value})
    return flat


def _plain(value):
    """Converts a tensor to a float, or to an array if it has several values."""
    array = as_array(value)
    if array is None:
        return value
    return float(array) if array.ndim == 0 else array


def as_array(value):
    """Converts an entry of the logs to an array; `None` if it does not contain numbers."""
    try:
        return None if value is None else np.array(keras.ops.convert_to_numpy(value), np.float64)
    except (TypeError, ValueError) as error:
        if user_code.is_of_handler(error):
            raise
        return None
