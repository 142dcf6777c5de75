"""The states with which metrics begin an epoch or an evaluation.

Keras resets the metrics of a model then. A metric may last instead, if its `reset_state` or the
model's `reset_metrics` does nothing. It begins with the state of earlier samples, which the ranks
have merged already. Therefore a sum over the ranks takes what each rank has added to that state.
"""

import weakref

import numpy as np

# By metric: the values of its variables after the last reset. A metric whose variables were created
# later is missing, because it began with zeros.
_starts = weakref.WeakKeyDictionary()

# By metric: the merged state, and this rank's own state. A merge that is a function of the ranks'
# states cannot tell a start from what was added to it, so each rank continues with its own state.
_own_states = weakref.WeakKeyDictionary()


def values_of(metric):
    """Returns copies of the values of a metric's variables, as a list of arrays."""
    return [np.array(variable.numpy()) for variable in metric.variables]


def note(metrics):
    """Notes the states of metrics that Keras has reset, or has left as they are."""
    for metric in metrics:
        merged, own = _own_states.pop(metric, ([], []))
        if merged and all(map(np.array_equal, merged, values_of(metric))):
            for variable, value in zip(metric.variables, own, strict=True):
                variable.assign(value)
        _starts[metric] = values_of(metric)


def keep_own_state(metric, merged, own):
    """Keeps the state of this rank while a metric contains the merged state.

    Args:
        metric: A Keras metric.
        merged: List of arrays, one for each of its variables.
        own: List of arrays. The state of this rank.
    """
    _own_states[metric] = merged, own


def set_start(metric, values):
    """Sets the values with which a metric began, to those of a backup."""
    _starts[metric] = [np.asarray(value) for value in values]


def start_of(metric):
    """Returns the values with which a metric began, as a list of arrays."""
    known = _starts.get(metric, [])
    shapes = [tuple(variable.shape) for variable in metric.variables]
    return known if [each.shape for each in known] == shapes else list(map(np.zeros, shapes))
