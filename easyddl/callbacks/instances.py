"""Checks that `fit` received instances of easyddl's callbacks, and only one of each class."""

import keras

from easyddl.runtime import validators


def require_instance(owner, name, model=None):
    """Raises a `TypeError` if `set_model` was called on a class, or with no model of Keras 3.

    If a list contains the class, Keras calls `Class.set_model(model)`, which receives the model
    as `self`.

    Args:
        owner: The `self` of `set_model`.
        name: String. The name of the class.
        model: The model; `None` if there is none yet.
    """
    if not isinstance(owner, keras.callbacks.Callback):
        raise TypeError(
            f"`callbacks` must contain instances: pass ddl.{name}() with parentheses. "
            f"Received: the class {name}"
        )
    if model is not None:
        validators.instance_of_keras_3("model", model, keras.Model, "keras.Sequential([...])")


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
