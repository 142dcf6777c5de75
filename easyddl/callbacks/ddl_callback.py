"""The callback that makes a fit distributed."""

import collections
import contextlib
import numbers

import keras
import numpy as np

from easyddl import (
    backends,
    console,
    exchange,
    fits,
    gradients,
    momentum,
    objects,
    recording,
    world,
)
from easyddl.callbacks import hooks, order, step_spans
from easyddl.callbacks.global_variables_callback import DDLGlobalVariablesCallback

_WRITERS = (
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.BackupAndRestore,
)


class DDLCallback(keras.callbacks.Callback):
    """Makes `model.fit()` train on all ranks together. Must be the first callback.

    For as long as the fit lasts:

    - Gradients are averaged over all ranks at every step, before the optimizer clips,
      accumulates or applies them. With a loss that is a mean over the batch, as Keras's are,
      `k` ranks that take batches of `n` make the step of one process with a batch of `k * n`.
    - The logs that `History` and the other callbacks see at the end of an epoch are averaged
      over the ranks, so that all ranks take the same decisions.
    - The progress bar is shown on rank 0 only.
    - `ModelCheckpoint`, `CSVLogger`, `TensorBoard` and `BackupAndRestore` of Keras, and
      subclasses of them, act on rank 0 only. Pass them as they are. A subclass that calls
      collectives says so by a class attribute: `runs_on_all_ranks = True`.

    All ranks must take the same number of steps: see `split_data`.

    Args:
        bucket_bytes: Integer. How many bytes of gradients travel together. Each bucket leaves as
            soon as the backward pass has filled it. By default what the environment variable
            `EASYDDL_BUCKET_BYTES` says, or else a size that follows from the measured speed of
            the ranks' connection. All ranks must pass the same.

    Raises:
        ValueError: If `bucket_bytes`, or the environment variable, is no positive integer.
        TypeError: At `fit`, if the class was passed instead of an instance.
        ValueError: At `fit`, if it is not the first callback, or not the only one.
        RuntimeError: On all ranks, if they are about to take different numbers of steps; or if
            the model's own `fit` does not call that of `keras.Model`.

    Example:
    ```python
    model.fit(x, y, callbacks=[ddl.DDLCallback(), *mine, ddl.DDLGlobalVariablesCallback()])
    ```
    """

    def __init__(self, bucket_bytes=None):
        super().__init__()
        self.bucket_bytes = exchange.requested_bucket_bytes(bucket_bytes)
        self._validation = contextlib.ExitStack()
        if recording.is_wanted():
            step_spans.record(self)

    def set_params(self, params):
        # The dict is shared: the callbacks that come later read it too.
        if params and not world.is_root():
            params["verbose"] = 0
        super().set_params(params)

    def set_model(self, model=None):
        order.require_instance(self, "DDLCallback")
        super().set_model(model)
        fit = fits.current(model)
        if fit is None:
            return  # evaluate or predict: nothing is exchanged there
        order.check(fit.callbacks, DDLCallback, DDLGlobalVariablesCallback)
        self._hook(fit)
        for callback in fit.callbacks:
            if isinstance(callback, _WRITERS) and not hooks.runs_on_all_ranks(callback):
                change = hooks.announce if world.is_root() else hooks.mute
                fit.at_end.callback(change(callback))

    def _hook(self, fit):
        model = fit.model
        backends.require().check_model(model)
        fit.at_end.callback(gradients.hook(model.optimizer, self.bucket_bytes))
        fit.at_end.callback(momentum.hook(model.optimizer))
        # A step that was compiled by an earlier fit does not hold the exchange, and one
        # compiled by this fit must not be found by a later one.
        model.train_function = None
        fit.at_end.callback(setattr, model, "train_function", None)

    def on_train_begin(self, logs=None):
        fit = fits.current(self.model)
        if fit is None:
            raise RuntimeError(
                f"{type(self.model).__name__}.fit() does not call keras.Model.fit(), where "
                "easyddl hooks the optimizer. Call it there, or wrap the optimizer in "
                "`ddl.DistributedOptimizer` and leave DDLCallback out."
            )
        world.agree(
            f"model.fit() with epochs={self.params.get('epochs')}, "
            f"steps in an epoch: {self.params.get('steps')}"
        )
        broadcasts = any(isinstance(c, DDLGlobalVariablesCallback) for c in fit.callbacks)
        if not broadcasts and world.size() > 1 and world.is_root():
            console.say(
                "warning: there is no DDLGlobalVariablesCallback, so that each rank starts from "
                "its own weights. Pass ddl.DDLGlobalVariablesCallback() as the last callback."
            )

    def on_test_begin(self, logs=None):
        # A rank that validates for long is not late; validation may be the root's alone.
        fit = fits.current(self.model)
        if fit is not None:
            self._validation = fit.at_end.enter_context(contextlib.ExitStack())
            self._validation.enter_context(world.activity("validation"))

    def on_test_end(self, logs=None):
        self._validation.close()

    def on_epoch_end(self, epoch, logs=None):
        if world.size() == 1:
            return
        gradients.agree(self.model.optimizer, f"the end of epoch {epoch + 1} of model.fit()")
        if logs is not None:
            logs.update(average_logs(logs))


def average_logs(logs):
    """The mean of each entry over the ranks that have it.

    A rank may lack some, such as those of a validation that only the root makes. Entries that
    are no numbers stay as they are.
    """
    mine = {key: float(value) for key, value in logs.items() if _is_number(value)}
    values = collections.defaultdict(list)
    for theirs in objects.allgather_object(mine):
        for key, value in theirs.items():
            values[key].append(value)
    return {key: float(np.mean(each)) for key, each in values.items()}


def _is_number(value):
    if isinstance(value, numbers.Real):
        return not isinstance(value, bool)
    return getattr(value, "shape", None) == () and hasattr(value, "__float__")
