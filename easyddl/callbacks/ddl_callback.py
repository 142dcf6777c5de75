"""The callback that makes `fit` and `evaluate` work on all ranks together."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import keras

from easyddl import backends
from easyddl.callbacks import global_batch, hooks, order, scaling_measurement, step_spans
from easyddl.callbacks.global_variables_callback import DDLGlobalVariablesCallback
from easyddl.callbacks.rank_zero import RankZero
from easyddl.collectives import objects
from easyddl.optimizers import momentum_correction
from easyddl.profiling import trace_file
from easyddl.reducer import bucket_size
from easyddl.reducer.batch_weight import BatchWeight
from easyddl.runtime import notices, validators, world
from easyddl.training import (
    adapted_layers,
    compiled_step,
    evaluation_context,
    fit_context,
    layer_state,
    loss_weight,
    metrics,
    metrics_hook,
    model_state,
    optimizer_classes,
    optimizer_hook,
    replica_check,
)
from easyddl.training import scalar_losses as scalar
from easyddl.training.moving_statistics import average_moving_statistics

_UNEVEN = ("join", "truncate", "error")

_WRITERS = tuple(
    getattr(keras.callbacks, name)
    for name in (
        "ModelCheckpoint",
        "CSVLogger",
        "TensorBoard",
        "BackupAndRestore",
        "RemoteMonitor",
        "OrbaxCheckpoint",  # of Keras 3.13 and later
    )
    if hasattr(keras.callbacks, name)
)


class DDLCallback(keras.callbacks.Callback):
    """Makes `model.fit()` train on all ranks together. Must be the first callback.

    While `fit` runs:

    - Gradients are averaged over all ranks at every step, before the optimizer clips, accumulates
      or applies them. If the loss is a mean over the batch, as Keras's losses are, `k` ranks with
      batches of `n` samples take the step of one process with a batch of `k * n` samples. If
      batches or masks differ, each rank is weighted by the denominator of its loss.
    - The metrics that `History` and the other callbacks receive at the end of an epoch and of its
      validation are those of all ranks' samples. Therefore all ranks make the same decisions.
    - `model.stop_training`, set on any rank, stops all ranks after the same step.
    - The moving statistics of `BatchNormalization` are averaged over the ranks at the end of each
      epoch's steps: before the validation and before checkpoints.
    - Only rank 0 shows the progress bar.
    - Keras's `ModelCheckpoint`, `BackupAndRestore`, `OrbaxCheckpoint`, `CSVLogger`, `TensorBoard`
      and `RemoteMonitor`, and subclasses of them, act on rank 0 only. Pass them unchanged. A
      subclass that calls collectives must set the class attribute `runs_on_all_ranks = True`.

    In `model.evaluate()` the results are those of all ranks' samples, and all ranks must call it.
    An evaluation without this callback uses only the rank's own samples.

    Args:
        bucket_bytes: Integer. The size of a gradient bucket in bytes. Each bucket is sent as soon
            as the backward pass has filled it. Defaults to the environment variable
            `EASYDDL_BUCKET_BYTES`, or else to a size that is derived from the measured speed of
            the connection between the ranks. All ranks must pass the same value.
        uneven: `"join"`, `"truncate"` or `"error"`. What happens in an epoch in which some ranks
            have fewer batches than others. With `"join"` all batches are trained on: a rank
            without a batch joins the others' steps with weight zero, and receives their variables
            at the end. With `"truncate"` the epoch ends with the first step in which a rank has no
            batch. With `"error"` different numbers of batches are an error on all ranks. Defaults
            to `"join"`.
        check_replicas: Integer. The number of steps after which the ranks compare checksums of
            their weights and optimizer variables. A difference raises an error that names the
            variable and the ranks. A comparison takes 3000 microseconds, and 7500 for each million
            parameters with Adam (two ranks on two cores, `python tests/benchmarks/replicas.py`).
            From the first step of an epoch in which a rank has no batch, comparisons are skipped
            until the next epoch. With `None`, the default, the ranks compare once, at the end of
            `fit`, and rank 0 prints a warning. `False` disables the comparison.
        scalar_losses: `"mean"` or `"sum"`. The kind of losses that arrive as one number: losses
            that your own layer adds with `add_loss`, and losses that a loss function has already
            reduced. Means are averaged over the ranks, and sums are added. With `None`, the
            default, they are treated as means over the samples, with a warning.
        sparse_as_dense: Boolean. With `False`, sparse gradients, such as TensorFlow's gradient of
            an `Embedding`, are sent by rows, and the optimizer receives the rows of all ranks, as
            in one process. With `True` they are sent as dense gradients, with all rows of the
            variable; rows that occur several times are added up before the optimizer receives
            them. All ranks must pass the same value. Defaults to `False`.

    Raises:
        ValueError: If `bucket_bytes` or the environment variable is not a positive integer, if
            `uneven` or `scalar_losses` has another value, if `check_replicas` is not a positive
            integer, `None` or `False`, or if `sparse_as_dense` is not a boolean.
        TypeError: At `fit`, if the class was passed instead of an instance.
        ValueError: At `fit`, if it is not the first callback, or is passed more than once.
        RuntimeError: On all ranks, if they train for different numbers of epochs; if they have
            different numbers of batches and `uneven="error"`; if `check_replicas` finds a
            difference; or if the model's own `fit` does not call `keras.Model.fit`.

    Example:
    ```python
    model.fit(x, y, callbacks=[ddl.DDLCallback(), *mine, ddl.DDLGlobalVariablesCallback()])
    model.evaluate(x_part, y_part, callbacks=[ddl.DDLCallback()])
    ```
    """

    # Keras may start the next step before the callbacks of a step have run. This callback allows
    # it, unless `__init__` needs the values of each step.
    async_safe = True

    def __init__(
        self,
        bucket_bytes: int | None = None,
        uneven: Literal["join", "truncate", "error"] = "join",
        check_replicas: int | Literal[False] | None = None,
        scalar_losses: Literal["mean", "sum"] | None = None,
        sparse_as_dense: bool = False,
    ) -> None:
        super().__init__()
        self.bucket_bytes = bucket_size.requested(bucket_bytes)
        if uneven not in _UNEVEN:
            raise ValueError(f"`uneven` must be one of {_UNEVEN}. Received: uneven={uneven!r}")
        self.uneven = uneven
        if scalar_losses not in (None, *scalar.KINDS):
            raise ValueError(
                f"`scalar_losses` must be one of {scalar.KINDS}, or None for means with a warning. "
                f"Received: scalar_losses={scalar_losses!r}"
            )
        self.scalar_losses = scalar_losses
        if check_replicas is not None and check_replicas is not False:
            otherwise = ", None for the end of fit(), or False for never"
            validators.positive_integer("check_replicas", check_replicas, otherwise)
        self.check_replicas = check_replicas
        self.sparse_as_dense = optimizer_hook.checked_sparse_as_dense(sparse_as_dense)
        self._validation = contextlib.ExitStack()
        self._has_validated = False
        if trace_file.is_wanted():
            step_spans.record(self)
        if trace_file.is_wanted() or self.check_replicas:
            self.async_safe = False

    def set_params(self, params: dict[str, Any] | None) -> None:
        # The dict is shared with the callbacks that come later.
        if params and not world.is_root():
            params["verbose"] = 0
        super().set_params(params)

    def set_model(self, model: keras.Model | None = None) -> None:
        order.require_instance(self, "DDLCallback")
        super().set_model(model)
        evaluation, fit = evaluation_context.current(model), fit_context.current(model)
        if evaluation is not None:
            weight = BatchWeight()  # not used in an evaluation
            evaluation.at_end.callback(loss_weight.hook(model, weight, self.scalar_losses))
            evaluation.at_end.callback(metrics_hook.hook(model))
            if loss_weight.changes_test_function(model):
                evaluation.model.test_function = None
                evaluation.at_end.callback(setattr, model, "test_function", None)
        elif fit is not None:
            order.check(fit.callbacks, DDLCallback, DDLGlobalVariablesCallback)
            self._hook(fit)
            for callback in fit.callbacks:
                if isinstance(callback, _WRITERS) and not hooks.runs_on_all_ranks(callback):
                    change = hooks.announce if world.is_root() else hooks.mute
                    fit.at_end.callback(change(callback))
            if scaling_measurement.is_wanted():
                scaling_measurement.begin(fit, self, _writers(fit.callbacks))

    def _hook(self, fit):
        model = fit.model
        backends.require().check_model(model)
        roots = [c for c in fit.callbacks if isinstance(c, DDLGlobalVariablesCallback)]
        if world.size() > 1 and roots and adapted_layers.sync_from_root(model, roots[0].root_rank):
            compiled_step.drop(model)
        settings = compiled_step.Settings(
            self.bucket_bytes, self.sparse_as_dense, self.scalar_losses
        )
        step = compiled_step.for_fit(model, settings, (momentum_correction.hook,))
        fit.step = fit.at_end.enter_context(step)
        fit.join.goes_on = self.uneven == "join"
        optimizer_classes.watch()
        for optimizer in model_state.optimizers(model):
            fit.step.hook(optimizer)
        if world.size() > 1:
            fit.on_success(lambda: self._end_fit(fit))
            fit.on_steps_end(lambda: self._end_steps(fit))
            fit.at_end.callback(metrics_hook.hook(model, fit))
            fit.wrap_train_step(
                lambda train_step: layer_state.merging_train_step(train_step, model)
            )
        fit.wrap_train_step(fit.join.announcing)
        # On all ranks, because the compiled steps must be the same.
        _ = fit.meter
        global_batch.watch(fit)

    def _end_fit(self, fit):
        """Checks the trained model. Called after all epochs if no rank has raised an error."""
        model = fit.model
        if fit.has_steps and not fit.join.has_gradients:
            notices.tell(
                "warning: no Keras optimizer applied gradients in the steps of model.fit(). "
                "Therefore no gradients were averaged, and every rank trained alone. Apply the "
                "gradients with a Keras optimizer within `train_step`."
            )
        found = replica_check.differences(model) if self.check_replicas is not False else None
        if found:
            notices.tell(
                f"warning: the ranks' models differ after model.fit(): {found}. Something changes "
                "them on some ranks only, for example a callback. DDLCallback(check_replicas=1) "
                "finds the step; check_replicas=False disables this comparison."
            )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        fit = fit_context.current(self.model)
        if fit is None:
            raise RuntimeError(
                f"{type(self.model).__name__}.fit() does not call keras.Model.fit(), where "
                "easyddl hooks the optimizer. Call it there, or wrap the optimizer in "
                "`ddl.DistributedOptimizer` and leave DDLCallback out."
            )
        steps = f", steps in an epoch: {self.params.get('steps')}" if self.uneven == "error" else ""
        fit.step.save_train_function()
        world.agree(
            f"model.fit() with epochs={self.params.get('epochs')}, uneven={self.uneven!r}, "
            f"check_replicas={self.check_replicas}{steps}"
        )
        fit.find_validation()
        if world.size() > 1:
            fit.watch_steps()
        broadcasts = any(isinstance(c, DDLGlobalVariablesCallback) for c in fit.callbacks)
        if not broadcasts and world.size() > 1:
            notices.tell(
                "warning: there is no DDLGlobalVariablesCallback, so each rank starts from its own "
                "weights. Pass ddl.DDLGlobalVariablesCallback() as the last callback."
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch, self._has_validated = epoch, False
        fit = fit_context.current(self.model)
        if fit is not None:
            fit.begin_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.check_replicas or world.size() == 1:
            return
        model = self.model  # this access makes Keras copy JAX's state into the variables
        steps = fit_context.current(model).steps
        if steps % self.check_replicas == 0 and fit_context.all_ranks_have_batches(model):
            replica_check.check(model, f"after step {steps} of epoch {self._epoch + 1} of fit()")

    def _end_steps(self, fit):
        """Ends the steps of an epoch on all ranks, before the validation."""
        backends.require().finish(fit.model)
        fit.join_first_batch()
        state = fit.join.join_others(stop=self.model.stop_training)
        if state.uneven and self.uneven == "truncate":
            fit.data.end_epoch()
        # Steps that only accumulate gradients exchange no control word, so the ranks compare
        # their numbers of steps here.
        accumulated = model_state.accumulated_steps(self.model)
        if state.uneven or accumulated is not None:
            mine = -state.missed if accumulated is None else accumulated
            self._sync_unequal_ranks(objects.allgather_object(mine))
        average_moving_statistics(self.model, weight=fit.steps)
        layer_state.sync_from_root(self.model, fit.step.root_rank or 0)
        self.model.stop_training = state.stop

    def _sync_unequal_ranks(self, steps):
        """Synchronizes ranks that have taken different numbers of steps."""
        most = max(steps)
        short = [str(rank) for rank, each in enumerate(steps) if each < most]
        if short and self.uneven == "error":
            raise RuntimeError(
                f"Ranks {', '.join(short)} of {world.size()} ran out of batches in epoch "
                f"{self._epoch + 1} of model.fit() before the others. Give all ranks the same "
                'number of batches, or pass DDLCallback(uneven="join") to train on all batches. '
                'Received: uneven="error"'
            )
        if short:
            model_state.sync_from_rank(self.model, root_rank=steps.index(most))

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        evaluation, fit = evaluation_context.current(self.model), fit_context.current(self.model)
        if evaluation is not None and world.size() > 1:
            evaluation.is_shared = self._has_validated = True
        # A long validation must not end the job as a stall, even if only the root validates.
        if fit is not None:
            self._validation = fit.at_end.enter_context(contextlib.ExitStack())
            self._validation.enter_context(world.activity("validation"))

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._validation.close()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        fit = fit_context.current(self.model)
        if world.size() == 1 or fit is None:
            return
        # Ranks without validation data receive the results of the others.
        if not self._has_validated and fit.any_rank_validates(epoch):
            found = metrics.shared_logs(self.model, {}, has_samples=False)
            if logs is not None:
                logs.update({f"val_{key}": value for key, value in found.items()})


def _writers(callbacks):
    """The callbacks that write files: Keras's, and easyddl's, which run on all ranks."""

    def writes(callback):
        inner = callback.callback if isinstance(callback, RankZero) else callback
        return isinstance(inner, _WRITERS) or hooks.runs_on_all_ranks(callback)

    return [callback for callback in callbacks if writes(callback)]
