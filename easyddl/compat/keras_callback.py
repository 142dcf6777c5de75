"""Callbacks."""

import keras

from easyddl.compat import patches
from easyddl.compat.names import Name

_SAVE = Name(
    "keras.callbacks.ModelCheckpoint",
    "_save_model(epoch, batch, logs)",
    "ddl.ModelCheckpoint cannot call its collectives before it saves",
)

NAMES = (
    _SAVE,
    Name(
        "keras.callbacks.Callback",
        "_model",
        "callbacks cannot get the model without making steps on JAX wait",
        is_set=True,
    ),
    Name(
        "keras.callbacks.SwapEMAWeights",
        "_ema_weights_in_model",
        "a training with SwapEMAWeights before ddl.BackupAndRestore resumes from the averages",
        is_set=True,
    ),
)


def model_of(callback):
    """Returns a callback's model, without the side effect of `callback.model`.

    On JAX, `callback.model` assigns the values of the last step to all variables, which is slow.
    """
    return callback._model


def model_replaced(callback, model):
    """Returns a context in which another object is a callback's model."""
    return patches.replaced(callback, "_model", model)


def weights_are_swapped(callbacks):
    """Returns whether a `SwapEMAWeights` has put the averages of the weights in their place."""
    return any(each._ema_weights_in_model for each in _swapping(callbacks))


def set_weights_swapped(callbacks, are_swapped):
    """Makes each `SwapEMAWeights` take a model's weights as those of another process were."""
    for each in _swapping(callbacks):
        each._ema_weights_in_model = are_swapped


def _swapping(callbacks):
    return [each for each in callbacks if isinstance(each, keras.callbacks.SwapEMAWeights)]


def waits_for_steps(callback):
    """Returns whether Keras waits for each training step because of a callback.

    This is Keras's rule for backends on which it may start the next step before the callbacks run.
    """
    is_used = any(
        getattr(getattr(callback, name), "__func__", None)
        is not getattr(keras.callbacks.Callback, name)
        for name in ("on_batch_end", "on_train_batch_end")
    )
    return is_used and not getattr(callback, "async_safe", False)


class SavingCheckpoint(keras.callbacks.ModelCheckpoint):
    """A `ModelCheckpoint` whose subclasses may override how the model is saved.

    Keras calls `save_model` after a batch or an epoch, as `save_freq` says. Keras's implementation
    saves unless `save_best_only` forbids it.
    """

    def __init__(self, *args, **kwargs):
        _SAVE.require()  # otherwise `save_model` would silently never be called
        super().__init__(*args, **kwargs)

    def save_model(self, epoch, batch, logs):
        """Saves the model as Keras does, unless `save_best_only` forbids it.

        Args:
            epoch: Integer, from 0.
            batch: Integer, or `None` at the end of an epoch.
            logs: Dict of logs.
        """
        super()._save_model(epoch, batch, logs)

    def _save_model(self, epoch, batch, logs):
        self.save_model(epoch, batch, logs)
