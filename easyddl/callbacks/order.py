"""Checks where easyddl's callbacks stand in the list given to `fit`."""

import keras

_RIGHT = "callbacks=[ddl.DDLCallback(), ..., ddl.DDLGlobalVariablesCallback()]"


def require_instance(owner, name):
    """Raises an error if Keras called a method on the class instead of an instance.

    A list that holds the class makes Keras call `Class.set_model(model)`, in which the model
    arrives as `self`.
    """
    if not isinstance(owner, keras.callbacks.Callback):
        raise TypeError(
            f"`callbacks` must hold instances: pass ddl.{name}() with parentheses. "
            f"Received: the class {name}"
        )


def check(callbacks, first=None, last=None):
    """Raises an error unless easyddl's callbacks stand once each, in the right places.

    Args:
        callbacks: List of the user's callbacks.
        first: The class that must come first, if it is there; `None` for no such rule.
        last: The class that must come last, if it is there; `None` for no such rule.
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
    """The callbacks without what Keras adds at the end of a `CallbackList`."""
    end = len(callbacks)
    own = keras.callbacks.History | keras.callbacks.ProgbarLogger
    while end and isinstance(callbacks[end - 1], own):
        end -= 1
    return callbacks[:end]


def _shown(callbacks):
    return f"[{', '.join(type(callback).__name__ for callback in callbacks)}]"
