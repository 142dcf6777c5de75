"""Metrics over all ranks: not means of the ranks' results, but the results of all samples.

A metric keeps sums, such as how many predictions were right and how many there were. Adding these
over the ranks, and computing the result once, gives what one process reports on all the data.
"""

import collections
import inspect
import math
import numbers

import keras
import numpy as np

from easyddl import collectives, console, objects, world

_OPS = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max}

_merges = {}  # by class, of users' own metrics
_told = set()  # names of metrics that were warned of


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
        Dict of floats, and of tensors where a metric has several values, equal on all ranks.
    """
    leaves = _leaves(model.metrics)
    before = model.get_metrics_result()
    differs = has_samples and bool(logs) and set(logs) != set(before)
    any_differs = _add_up([m for m in leaves if is_exact(m)], has_samples, differs)
    _merge([m for m in leaves if type(m) in _merges], has_samples)
    others = [m for m in leaves if not is_exact(m) and type(m) not in _merges]
    _warn_of(others)
    after = _plain(model.get_metrics_result())
    if any_differs:
        # A train_step of the user's own returns logs of its own: what matches is exact.
        means = mean_logs(logs if has_samples else {})
        return {key: after.get(key, value) for key, value in means.items()}
    # Where a metric is its rank's own, this is the mean of the ranks' that have samples; where it
    # is everyone's, that is what all have.
    return {**after, **mean_logs(after if has_samples else {})} if others else after


def is_exact(metric):
    """Whether a metric's variables are sums, because what updates them is Keras's own."""
    update = inspect.unwrap(type(metric).update_state)
    return update.__module__.partition(".")[0] == "keras" and type(metric) not in _merges


def _leaves(metrics):
    """The metrics that hold variables, without Keras's containers of the compiled ones."""
    found = []
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        found.extend([metric] if inner is None else _leaves(inner))
    return found


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
        (total,) = collectives.reduce_arrays([np.concatenate(parts)], "float64", "sum", text)
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
        if metric.name in _told:
            continue
        _told.add(metric.name)
        if world.is_root():
            console.say(
                f"warning: the metric {metric.name!r} is not Keras's own ({type(metric).__name__}),"
                " so that its value is the mean of the ranks' own. Tell how they become one with "
                "ddl.register_metric."
            )


def mean_logs(logs):
    """The mean of each entry over the ranks that have it. Entries that are no numbers are left out.

    Args:
        logs: Dict of this rank's logs.

    Returns:
        Dict of floats, equal on all ranks.
    """
    mine = {key: float(value) for key, value in logs.items() if _is_number(value)}
    values = collections.defaultdict(list)
    for theirs in objects.allgather_object(mine):
        for key, value in theirs.items():
            values[key].append(value)
    return {key: float(np.mean(each)) for key, each in values.items()}


def _plain(logs):
    """Numbers in place of scalar tensors."""
    return {key: float(value) if _is_number(value) else value for key, value in logs.items()}


def _is_number(value):
    if isinstance(value, numbers.Real):
        return not isinstance(value, bool)
    return getattr(value, "shape", None) == () and hasattr(value, "__float__")
