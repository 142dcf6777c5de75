"""Puts easyddl's callbacks where `fit` and `evaluate` need them among the others.

A library that calls `fit`, such as KerasTuner, may add callbacks of its own at either end of the
user's list. So the user cannot be responsible for the order.
"""

from typing import Any

import keras

from easyddl.runtime import notices


class FitEvents:
    """What a fit tells easyddl's callbacks, beside what Keras tells all callbacks.

    A fit calls each method on all ranks together, in the order of its `listeners`.
    """

    def before_first_batch(self, fit: Any, spec: Any) -> None:
        """Called before the first step, if `fit.exchange_first_batch()` has been called.

        Args:
            fit: `FitContext`.
            spec: The structure of the batches, in the backend's form.
        """

    def after_first_step(self, fit: Any) -> None:
        """Called as soon as the first step has run, or has started."""

    def after_steps(self, fit: Any) -> None:
        """Called in each epoch after its last step and before its validation."""

    def after_fit(self, fit: Any) -> None:
        """Called after Keras's `fit` has returned, if no rank has raised an error."""


class First(FitEvents):
    """The base of `DDLCallback`, which is in a layer above this one."""


class Last(FitEvents):
    """The base of `DDLGlobalVariablesCallback`."""


def callbacks_of(callbacks):
    """Returns the user's callbacks as a flat list.

    Args:
        callbacks: The argument `callbacks` of `fit`: a callback, nested lists of callbacks, a
            `CallbackList` or `None`.
    """
    inner = getattr(callbacks, "callbacks", callbacks)
    return keras.tree.flatten(inner) if inner else []


def has_first(callbacks):
    """Returns whether the argument `callbacks` of `fit` or `evaluate` contains a `DDLCallback`."""
    return find(First, callbacks_of(callbacks)) is not None


def find(kind, callbacks):
    """Returns the first instance of a class in a list of callbacks; `None` if there is none."""
    return next((each for each in callbacks if isinstance(each, kind)), None)


def put_in_order(callbacks):
    """Puts `DDLCallback` first and `DDLGlobalVariablesCallback` last.

    The others keep their order. Keras appends `History` and `ProgbarLogger` to a `CallbackList`;
    these may follow the last one. Rank 0 says once that the order has changed.

    Args:
        callbacks: The argument `callbacks` of `fit` or `evaluate`.

    Returns:
        The argument itself if its order is right, or if it is a `CallbackList`, which is changed.
        Otherwise a flat list.
    """
    received = callbacks_of(callbacks)
    ordered = _ordered(received)
    if list(map(id, ordered)) == list(map(id, received)):
        return callbacks
    notices.tell_once(
        put_in_order,
        f"note: the callbacks run in the order {_shown(ordered)}, because DDLCallback must "
        f"be the first and DDLGlobalVariablesCallback the last. Received: {_shown(received)}",
    )
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks[:] = ordered
        return callbacks
    return ordered


def _ordered(callbacks):
    end = _end_without_keras_own(callbacks)
    groups = [], [], [], callbacks[end:]
    for callback in callbacks[:end]:
        is_last = isinstance(callback, Last)
        groups[0 if isinstance(callback, First) else 2 if is_last else 1].append(callback)
    return [callback for group in groups for callback in group]


def _end_without_keras_own(callbacks):
    """Returns the number of callbacks before those that Keras appends to a `CallbackList`."""
    end = len(callbacks)
    own = keras.callbacks.History | keras.callbacks.ProgbarLogger
    while end and isinstance(callbacks[end - 1], own):
        end -= 1
    return end


def _shown(callbacks):
    return f"[{', '.join(type(callback).__name__ for callback in callbacks)}]"
