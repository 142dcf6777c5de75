"""Checks that `fit` received instances of easyddl's callbacks, and only one of each class."""

import keras


def require_instance(owner, name):
    """Raises a `TypeError` if Keras called a method on the class instead of an instance.

    If a list contains the class, Keras calls `Class.set_model(model)`, which receives the model
    as `self`.
    """
    if not isinstance(owner, keras.callbacks.Callback):
        raise TypeError(
            f"`callbacks` must contain instances: pass ddl.{name}() with parentheses. "
            f"Received: the class {name}"
        )


def require_single(callbacks, *kinds):
    """Checks that no callback occurs more than once.

    Args:
        callbacks: List of the user's callbacks.
        *kinds: The classes of which there may be one instance.

    Raises:
        ValueError: If there are several instances of a class.
        TypeError: If the list contains a class instead of an instance.
    """
    for kind in kinds:
        for callback in callbacks:
            if callback is kind:
                require_instance(callback, kind.__name__)
        count = sum(isinstance(callback, kind) for callback in callbacks)
        if count > 1:
            shown = ", ".join(type(callback).__name__ for callback in callbacks)
            raise ValueError(
                f"`callbacks` must contain only one {kind.__name__}: remove the others. "
                f"Received: {count} of them in [{shown}]"
            )
