"""A `ModelCheckpoint` for many ranks, whose files are always whole."""

import os

import numpy as np

from easyddl.checkpoint import atomic_files
from easyddl.collectives import objects
from easyddl.compat import keras_callback
from easyddl.runtime import world
from easyddl.training import fit_context, moving_statistics


class ModelCheckpoint(keras_callback.SavingCheckpoint):
    """Saves the model as training goes on: Keras's callback, for many ranks.

    It takes the arguments of `keras.callbacks.ModelCheckpoint`, and differs in this:

    - Rank 0 decides and writes alone, and the others wait for it. If it cannot write, as on a
      full disk, all ranks raise its error.
    - A file appears whole or not at all: it is written under a temporary name, beside the final
      one, and renamed. Whatever kills the job, the last good file stays loadable. What a killed
      job has left behind is removed when the next one begins.
    - The ranks' moving statistics of `BatchNormalization` are averaged before they are saved.

    Pass it to all ranks, unwrapped. With an integer `save_freq` the ranks come together in the
    middle of an epoch: steps in which some have no batch are not counted, and nothing is saved
    then. What it monitors are rank 0's own numbers in that case, since those of a batch are not
    averaged.

    Args:
        filepath: String or path, on a file system that rank 0 sees. It ends in `.keras` or
            `.h5`, or in `.weights.h5` with `save_weights_only=True`, and may hold fields such as
            `{epoch:02d}` or `{val_loss:.2f}`.
        monitor: String. Which of the logs `save_best_only` looks at.
        verbose: Integer. Rank 0 prints what it does if it is 1.
        save_best_only: Boolean. Whether to save only what is better than all before.
        save_weights_only: Boolean. Whether to save the weights, not the whole model.
        mode: `"auto"`, `"min"` or `"max"`. What "better" is.
        save_freq: `"epoch"`, or an integer: after how many batches of a rank to save.
        initial_value_threshold: Float. What the first to be saved must be better than.

    Raises:
        ValueError: If an argument is none of these.
        OSError: At `fit`, on all ranks, if rank 0 cannot write.
        RuntimeError: At `fit`, on all ranks, if their arguments differ.

    Example:
    ```python
    callbacks = [
        ddl.DDLCallback(),
        ddl.ModelCheckpoint("best.keras", monitor="val_loss", save_best_only=True),
        ddl.DDLGlobalVariablesCallback(),
    ]
    ```
    """

    runs_on_all_ranks = True

    def __init__(
        self,
        filepath,
        monitor="val_loss",
        verbose=0,
        save_best_only=False,
        save_weights_only=False,
        mode="auto",
        save_freq="epoch",
        initial_value_threshold=None,
    ):
        atomic_files.require_local("filepath", filepath)
        if save_freq != "epoch":
            check_save_freq(save_freq)
        super().__init__(
            filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=save_best_only,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
            initial_value_threshold=initial_value_threshold,
        )

    def on_train_begin(self, logs=None):
        world.agree(f"ModelCheckpoint with save_freq={self.save_freq!r}")
        objects.from_root(
            lambda: atomic_files.remove_leftovers(self.filepath), "ModelCheckpoint.on_train_begin"
        )

    def on_train_batch_end(self, batch, logs=None):
        if fit_context.everyone_trains(self.model):
            super().on_train_batch_end(batch, logs)

    def save_model(self, epoch, batch, logs):
        # Keras calls this when it is time to save, after a batch or an epoch, and decides in it
        # whether to. All ranks come together here, and nowhere else.
        moving_statistics.average_moving_statistics(self.model)
        self.best = objects.from_root(
            lambda: self._save_on_root(epoch, batch, logs), f"ModelCheckpoint in epoch {epoch + 1}"
        )

    def _save_on_root(self, epoch, batch, logs):
        model = _SavedAtomically(keras_callback.model_of(self))
        with keras_callback.model_replaced(self, model):
            super().save_model(epoch, batch, logs or {})
        return self.best


def check_save_freq(save_freq):
    """Raises an error unless `save_freq` is a number of batches."""
    is_number = isinstance(save_freq, int) and not isinstance(save_freq, bool)
    if not is_number or save_freq < 1:
        raise ValueError(
            '`save_freq` must be "epoch", or the number of batches after which to save. '
            f"Received: save_freq={save_freq!r}"
        )


class _SavedAtomically:
    """Stands in for a model, and saves it to files that appear whole or not at all."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def save(self, filepath, **arguments):
        self._write(filepath, lambda path: self._model.save(path, **arguments))

    def save_weights(self, filepath, **arguments):
        self._write(filepath, lambda path: self._model.save_weights(path, **arguments))

    def _write(self, filepath, write):
        variables = [*self._model.weights, *self._model.optimizer.variables]
        size = sum(np.asarray(variable.numpy()).nbytes for variable in variables)
        atomic_files.write_file(os.fspath(filepath), write, size)
