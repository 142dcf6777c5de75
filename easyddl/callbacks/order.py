"""Checks the positions of easyddl's callbacks in the list passed to `fit`."""

import keras

_RIGHT = "callbacks=[ddl.DDLCallback(), ..., ddl.DDLGlobalVariablesCallback()]"


def require_instance(owner, name):
    """Raises a `TypeError` if Keras called a method on the class instead of an instance.

    If a list contains the class, Keras calls `Class.set_model(model)`, which receives the model
    as `self`.
    """
    if not isinstance(owner, keras.callbacks.Callback):
        raise TypeError(
            f"`callbacks` must hold instances: pass ddl.{name}() with parentheses. "
            f"Received: the class {name}"
        )


def check(callbacks, first=None, last=None):
    """Checks that each of easyddl's callbacks occurs at most once and in the right position.

    Args:
        callbacks: List of the user's callbacks.
        first: The class that must be the first callback if it occurs, or `None`.
        last: The class that must be the last callback if it occurs, or `None`.

    Raises:
        ValueError: If a callback occurs more than once or in another position.
        TypeError: If the list contains a class instead of an instance.
    """
    callbacks = _without_keras_own(callbacks)
    for kind in filter(None, (first, last)):
        for callback in callbacks:
            if callback is kind:
                require_instance(callback, kind.__name__)
        found = [i for i, callback in enumerate(callbacks) if isinstance(callback, kind)]
        if len(found) > 1:
            raise ValueError(
                f"`callbacks` must hold one {kind.__name__}: remove all but one. "
                f"Received: {len(found)} of them, at {found} in {_shown(callbacks)}"
            )
        place = 0 if kind is first else len(callbacks) - 1
        if found and found[0] != place:
            raise ValueError(
                f"{kind.__name__} must be the {'first' if kind is first else 'last'} of "
                f"`callbacks`: move it there, as in {_RIGHT}. Received: {_shown(callbacks)}"
            )


def _without_keras_own(callbacks):
    """Returns the callbacks without those that Keras appends to a `CallbackList`."""
    end = len(callbacks)
    own = keras.callbacks.History | keras.callbacks.ProgbarLogger
    while end and isinstance(callbacks[end - 1], own):
        end -= 1
    return callbacks[:end]


def _shown(callbacks):
    return f"[{', '.join(type(callback).__name__ for callback in callbacks)}]"
