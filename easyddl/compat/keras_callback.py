"""Callbacks."""

import keras

from easyddl.compat import patches
from easyddl.compat.names import Name

_SAVE = Name(
    "keras.callbacks.ModelCheckpoint",
    "_save_model",
    "ddl.ModelCheckpoint cannot bring all ranks together to save",
    takes=("epoch", "batch", "logs"),
)

NAMES = (
    _SAVE,
    Name(
        "keras.callbacks.Callback",
        "_model",
        "callbacks cannot ask for the model without making steps on JAX wait",
        is_set=True,
    ),
)


def model_of(callback):
    """A callback's model, without what `callback.model` does.

    On JAX that has all variables take the values of the last step, which is slow.
    """
    return callback._model


def model_replaced(callback, model):
    """A context in which a callback has another object for its model."""
    return patches.replaced(callback, "_model", model)


class SavingCheckpoint(keras.callbacks.ModelCheckpoint):
    """A `ModelCheckpoint` whose subclasses may decide how to save.

    Keras calls `save_model` when it is time to save, after a batch or an epoch, and decides in it
    whether to.
    """

    def __init__(self, *args, **kwargs):
        _SAVE.require()  # else `save_model` would never be called, and nobody would notice
        super().__init__(*args, **kwargs)

    def save_model(self, epoch, batch, logs):
        """Saves the model if it is to be saved, as Keras does.

        Args:
            epoch: Integer, from 0.
            batch: Integer, or `None` at the end of an epoch.
            logs: Dict of logs.
        """
        super()._save_model(epoch, batch, logs)

    def _save_model(self, epoch, batch, logs):
        self.save_model(epoch, batch, logs)
