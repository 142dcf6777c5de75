"""A `ModelCheckpoint` for many ranks, which writes atomic files."""

from __future__ import annotations

import os
from typing import Any, Literal

from easyddl.callbacks.own_callback import OwnCallback
from easyddl.checkpoint import atomic_files, model_files
from easyddl.checkpoint.start_claim import StartClaim
from easyddl.collectives import objects
from easyddl.compat import keras_callback
from easyddl.runtime import validators, world
from easyddl.training.fit import fit_context


class ModelCheckpoint(OwnCallback, keras_callback.SavingCheckpoint):
    """Saves the model during training. Replaces Keras's callback of the same name on many ranks.

    It takes the arguments of `keras.callbacks.ModelCheckpoint`, and differs as follows:

    - Only rank 0 decides and writes, and the other ranks wait for it. If rank 0 cannot write, for
      example on a full disk, all ranks raise its error.
    - Files are atomic: a file is written under a temporary name next to the final one, and then
      renamed. The last complete file stays loadable, however the job is killed. The next job
      removes the temporary files of a killed job.
    - The ranks' moving statistics of `BatchNormalization`, and the running statistics of PyTorch's
      `BatchNorm` modules, are averaged before they are saved.

    Pass it on all ranks, without a wrapper. With an integer `save_freq` it saves within an epoch.
    Steps in which some ranks have no batch are then not counted, and nothing is saved in them. In
    this case the monitored values are rank 0's own, because the logs of a batch are not averaged.

    Args:
        filepath: String or path, on a file system that rank 0 sees. It ends in `.keras` or
            `.h5`, or in `.weights.h5` with `save_weights_only=True`, and may contain fields such
            as `{epoch:02d}` or `{val_loss:.2f}`.
        monitor: String. The log entry that `save_best_only` compares. Defaults to `"val_loss"`.
        verbose: Integer. With 1, rank 0 prints a line for each file. Defaults to 0.
        save_best_only: Boolean. Whether to save only if the monitored value has improved.
            Defaults to `False`.
        save_weights_only: Boolean. Whether to save only the weights instead of the whole model.
            Defaults to `False`.
        mode: `"auto"`, `"min"` or `"max"`. Whether lower or higher values are better. Defaults to
            `"auto"`.
        save_freq: `"epoch"`, or an integer: the number of a rank's batches after which to save, at
            the next step in which all ranks are known to have a batch: see `BackupAndRestore`.
            Defaults to `"epoch"`.
        initial_value_threshold: Float. The value that the first saved model must improve on.
            Defaults to `None`.

    Raises:
        ValueError: If an argument has an invalid value.
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
        filepath: str | os.PathLike[str],
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        save_weights_only: bool = False,
        mode: Literal["auto", "min", "max"] = "auto",
        save_freq: int | Literal["epoch"] = "epoch",
        initial_value_threshold: float | None = None,
    ) -> None:
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
        self._claim = StartClaim(filepath)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        world.agree(f"ModelCheckpoint with save_freq={self.save_freq!r}")
        objects.from_root(self._begin_on_root, "ModelCheckpoint.on_train_begin")

    def _begin_on_root(self):
        self._claim.take()
        atomic_files.remove_leftovers(self.filepath)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if self.save_freq != "epoch" and fit_context.all_ranks_have_batches(self.model):
            super().on_train_batch_end(batch, logs)

    def save_model(self, epoch: int, batch: int | None, logs: dict[str, Any] | None) -> None:
        # Keras calls this after a batch or an epoch, and decides here whether to save. This is
        # the only collective of this callback during training.
        fit_context.average_state(self.model)
        self.best = objects.from_root(
            lambda: self._save_on_root(epoch, batch, logs), f"ModelCheckpoint in epoch {epoch + 1}"
        )

    def _save_on_root(self, epoch, batch, logs):
        model = _SavedAtomically(keras_callback.model_of(self), self._claim)
        with keras_callback.model_replaced(self, model):
            super().save_model(epoch, batch, logs or {})
        return self.best


def check_save_freq(save_freq):
    """Raises a `ValueError` unless `save_freq` is a positive number of batches."""
    if not validators.is_integer(save_freq) or save_freq < 1:
        raise ValueError(
            '`save_freq` must be "epoch", or the number of batches after which to save. '
            f"Received: save_freq={save_freq!r}"
        )


class _SavedAtomically:
    """Wraps a model so that it is saved to atomic files, by the latest start of a job alone."""

    def __init__(self, model, claim):
        self._model, self._claim = model, claim

    def __getattr__(self, name):
        return getattr(self._model, name)

    def save(self, filepath, **arguments):
        self._write(filepath, lambda path: self._model.save(path, **arguments))

    def save_weights(self, filepath, **arguments):
        self._write(filepath, lambda path: self._model.save_weights(path, **arguments))

    def _write(self, filepath, write):
        size = model_files.size_of(self._model)
        atomic_files.write_entries(os.fspath(filepath), write, size, held=self._claim.held)
