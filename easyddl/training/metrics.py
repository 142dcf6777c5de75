"""Metrics over all ranks: not means of the ranks' results, but the results of all samples.

A metric keeps sums, such as how many predictions were right and how many there were. Adding these
over the ranks, and computing the result once, gives what one process reports on all the data.
"""

import collections
import inspect
import math

import keras
import numpy as np

from easyddl.collectives import arrays, objects
from easyddl.compat import keras_metric
from easyddl.runtime import notices, world

_OPS = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max}

_merges = {}  # by class, of users' own metrics


def register_metric(metric_class=None, *, merge):
    """Tells how the ranks' states of a metric of your own become one.

    Keras's own metrics need none: their variables are sums, and are added. What the variables of
    others hold cannot be known: without this, `DDLCallback` takes the mean of the ranks'
    results, and warns.

    Args:
        metric_class: Subclass of `keras.metrics.Metric`. Left out where it is used as a decorator.
        merge: `"sum"`, `"mean"`, `"min"` or `"max"`, for all of its variables; or a dict of
            these by the variables' names; or a function that takes a list of states, one a rank,
            each a list of NumPy arrays in the order of `metric.variables`, and returns one
            such state.

    Returns:
        The class.

    Raises:
        TypeError: If `metric_class` is no such class.
        ValueError: If `merge` is none of these.

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
    names = merge.values() if isinstance(merge, dict) else [merge]
    if not callable(merge) and not all(isinstance(n, str) and n in _OPS for n in names):
        raise ValueError(
            f"`merge` must be one of {tuple(_OPS)}, a dict of them by variable, or a function. "
            f"Received: merge={merge!r}"
        )
    _merges[metric_class] = merge
    return metric_class


def shared_logs(model, logs, has_samples=True):
    """The logs of all ranks' samples, in place of those of this rank's.

    All ranks must call it together. The metrics of `model` then hold the state of all ranks.

    Args:
        model: A compiled Keras model, whose metrics hold the state of this rank's samples.
        logs: Dict of what this rank's last step returned; empty if it took none.
        has_samples: Boolean. Whether this rank has computed metrics at all: a validation may be
            the root's alone.

    Returns:
        Dict of floats, and of NumPy arrays where a metric has several values, equal on all ranks.

    Raises:
        ValueError: On all ranks, if the shapes of a value differ that is to be a mean of theirs.
    """
    leaves = _leaves(model.metrics)
    # In arrays of their own: what Keras reports may be the variable that is changed below.
    before = _arrays(_flat(model.get_metrics_result()))
    logs = _arrays(_flat(logs)) if has_samples else {}
    differs = bool(logs) and set(logs) != set(before)
    any_differs = _add_up([m for m in leaves if is_exact(m)], has_samples, differs)
    _merge([m for m in leaves if type(m) in _merges], has_samples)
    others = [m for m in leaves if not _is_known(m)]
    _warn_of(others)
    after = _flat(model.get_metrics_result())
    if others:
        # Where a metric is its rank's own, this is the mean of the ranks' that have samples; where
        # it is everyone's, that is what all have.
        after = {**after, **mean_logs(after if has_samples else {})}
    if not any_differs:
        return {key: _plain(value) for key, value in after.items()}
    return _logs_of_ones_own(logs, before, after)


def _logs_of_ones_own(logs, before, after):
    """What a train_step of the user's own returns: a metric's result is exact, others are means."""
    own = {key for key, value in logs.items() if not _is_result(value, before.get(key))}
    anyones = set().union(*objects.allgather_object(own))
    return {
        key: mean if key in anyones or key not in after else _plain(after[key])
        for key, mean in mean_logs(logs).items()
    }


def _is_result(value, result):
    """Whether a value of the last step is what a metric has then, which the step may compile."""
    if value is None or result is None or value.shape != result.shape:
        return False
    return np.allclose(value, result, rtol=1e-5, equal_nan=True)


def is_exact(metric):
    """Whether a metric's variables are sums, because what updates them is Keras's own."""
    return _is_of_keras(type(metric).update_state) and type(metric) not in _merges


def _is_known(metric):
    """Whether it is known how the states of all ranks become one."""
    return is_exact(metric) or type(metric) in _merges


def _is_of_keras(thing):
    return inspect.unwrap(thing).__module__.partition(".")[0] == "keras"


def _leaves(metrics):
    """The metrics whose states become one by themselves, in place of what only holds others."""
    found = []
    for metric in metrics:
        if _is_of_keras(type(metric)):
            inner = getattr(metric, "metrics", None)  # a container of the compiled ones
            found.extend([metric] if inner is None else _leaves(inner))
        else:
            found.extend(_held(metric) or [metric])
    return found


def _held(metric):
    """The metrics that hold all that a metric of the user's own knows, if all of them are known.

    Its update may do anything with variables of its own, and its result must not be computed of
    these and of other ranks' states.
    """
    held = _leaves(keras_metric.metrics_in(metric))
    is_all = type(metric) not in _merges and not keras_metric.own_variables_of(metric)
    return held if is_all and all(map(_is_known, held)) else []


def _add_up(metrics, has_samples, differs):
    """Gives the variables of metrics their sums over all ranks.

    Returns:
        Boolean: whether `differs` is true on any rank.
    """
    variables = [v for metric in metrics for v in metric.variables]
    parts = [np.array([differs], np.float64)]
    for variable in variables:
        value = np.asarray(variable.numpy(), np.float64)
        parts.append(value.ravel() if has_samples else np.zeros(value.size))
    names = ", ".join(f"{m.name} {[tuple(v.shape) for v in m.variables]}" for m in metrics)
    text = f"adding up the metrics ({names})"
    with world.taking_part(text):
        (total,) = arrays.reduce_arrays([np.concatenate(parts)], "float64", "sum", text)
    ends = np.cumsum([math.prod(v.shape) for v in variables])[:-1]
    for variable, value in zip(variables, np.split(total[1:], ends), strict=False):
        variable.assign(value.reshape(variable.shape).astype(variable.numpy().dtype))
    return total[0] > 0


def _merge(metrics, has_samples):
    """Gives the variables of metrics what their classes make of the states of all ranks."""
    if not metrics:
        return
    mine = [[np.asarray(v.numpy()) for v in metric.variables] for metric in metrics]
    everyones = [each for each in objects.allgather_object(mine if has_samples else None) if each]
    for i, metric in enumerate(metrics):
        merged = _merged(metric, [states[i] for states in everyones])
        for variable, value in zip(metric.variables, merged, strict=True):
            variable.assign(np.asarray(value, variable.numpy().dtype))


def _merged(metric, states):
    merge = _merges[type(metric)]
    if callable(merge):
        return merge(states)
    result = []
    for variable, values in zip(metric.variables, zip(*states, strict=True), strict=True):
        name = merge if isinstance(merge, str) else merge.get(variable.name)
        if name is None:
            raise ValueError(
                f"`merge` of {type(metric).__name__} must name each of its variables. "
                f"Received: merge={merge!r}, without {variable.name!r}"
            )
        result.append(_OPS[name](np.stack(values), axis=0))
    return result


def _warn_of(metrics):
    for metric in metrics:
        notices.tell_once(
            ("metric", metric.name),
            f"warning: the metric {metric.name!r} is not Keras's own ({type(metric).__name__}), so "
            "that its value is the mean of the ranks' own. Tell how they become one with "
            "ddl.register_metric.",
        )


def mean_logs(logs):
    """The mean of each entry over the ranks that have it. Entries that are no numbers are left out.

    Args:
        logs: Dict of this rank's logs.

    Returns:
        Dict of floats, and of NumPy arrays where an entry has several values, equal on all ranks.

    Raises:
        ValueError: On all ranks, if the shapes of an entry differ.
    """
    values = collections.defaultdict(dict)
    for rank, theirs in enumerate(objects.allgather_object(_arrays(logs))):
        for key, value in theirs.items():
            values[key][rank] = value
    no_numbers = [key for key, each in values.items() if any(v is None for v in each.values())]
    _warn_of_no_numbers(no_numbers)
    return {key: _mean(key, each) for key, each in values.items() if key not in no_numbers}


def _arrays(logs):
    return {key: _array(value) for key, value in logs.items()}


def _mean(key, by_rank):
    """The mean of the ranks' arrays."""
    shapes = {rank: value.shape for rank, value in by_rank.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(
            f"{key!r} must have the same shape on all ranks, since the logs hold the mean of the "
            "ranks' own. If it is a metric of your own, tell how the ranks' states become one by "
            f"ddl.register_metric. Received: {key!r} with shapes by rank: {shapes}"
        )
    return _plain(np.mean(list(by_rank.values()), axis=0, dtype=np.float64))


def _warn_of_no_numbers(keys):
    for key in keys:
        notices.tell_once(
            ("log", key),
            f"warning: the logs' entry {key!r} is no number, of which all ranks could have the "
            "mean: it is left out.",
        )


def _flat(logs):
    """Logs without the dicts in them, as Keras flattens them for callbacks."""
    flat = {}
    for key, value in sorted(logs.items()):
        flat.update(_flat(value) if isinstance(value, dict) else {key: value})
    return flat


def _plain(value):
    """A float, or an array of several values, in place of a tensor."""
    array = _array(value)
    if array is None:
        return value
    return float(array) if array.ndim == 0 else array


def _array(value):
    """The numbers of a value of the logs as an array; `None` if it holds none."""
    try:
        return None if value is None else np.array(keras.ops.convert_to_numpy(value), np.float64)
    except (TypeError, ValueError):
        return None
