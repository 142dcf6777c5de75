"""The callback that makes `fit` and `evaluate` work on all ranks together."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import keras

from easyddl.callbacks import global_batch, hooks, instances, scaling_measurement
from easyddl.callbacks.global_variables_callback import DDLGlobalVariablesCallback
from easyddl.callbacks.own_callback import OwnCallback
from easyddl.reducer import reduction_options
from easyddl.runtime import validators, world
from easyddl.training.agreement import replicas
from easyddl.training.fit import callback_order, epoch_end, fit_context, shared_fit
from easyddl.training.metrics import evaluation
from easyddl.training.step import scalar_losses as scalar

_UNEVEN = ("join", "truncate", "error")


class DDLCallback(OwnCallback, callback_order.First, keras.callbacks.Callback):
    """Makes `model.fit()` train on all ranks together. Pass it as the first callback.

    `fit` moves it to the beginning of the list if other callbacks precede it.

    While `fit` runs:

    - Gradients are averaged over all ranks at every step, before the optimizer clips, accumulates
      or applies them. If the loss is a mean over the batch, as Keras's losses are, `k` ranks with
      batches of `n` samples take the step of one process with a batch of `k * n` samples. If
      batches or masks differ, each rank is weighted by the denominator of its loss.
    - At the end of an epoch and of its validation, `History` and the other callbacks receive
      metrics over the samples of all ranks. Therefore all ranks make the same decisions.
    - `model.stop_training`, set on any rank, stops all ranks after the same step.
    - The moving statistics of `BatchNormalization`, and the running statistics of PyTorch's
      `BatchNorm` modules, are averaged over the ranks at the end of each epoch's steps: before the
      validation and before checkpoints.
    - Only rank 0 shows the progress bar.
    - Keras's `ModelCheckpoint`, `BackupAndRestore`, `OrbaxCheckpoint`, `CSVLogger`, `TensorBoard`
      and `RemoteMonitor`, and subclasses of them, act on rank 0 only. Pass them unchanged. A
      subclass that calls collectives must set the class attribute `runs_on_all_ranks = True`.

    With this callback `model.evaluate()` returns results over the samples of all ranks, and all
    ranks must call it with the same weights. Without it, an evaluation uses only the rank's own
    samples.

    Args:
        bucket_bytes: Integer. The size of a gradient bucket in bytes. Each bucket is submitted as
            soon as the backward pass has filled it. Defaults to the environment variable
            `EASYDDL_BUCKET_BYTES`, or else to a size that is derived from the measured speed of
            the connection between the ranks. All ranks must pass the same value.
        uneven: `"join"`, `"truncate"` or `"error"`. What happens in an epoch in which some ranks
            have fewer batches than others. With `"join"` all batches are used: a rank without a
            batch joins the others' steps with weight zero, and receives their variables at the
            end. With `"truncate"` the epoch ends with the first step in which a rank has no batch.
            With `"error"` different numbers of batches raise an error on all ranks. Defaults to
            `"join"`.
        check_replicas: Integer. The number of steps after which the ranks compare checksums of
            their weights and optimizer variables. A difference raises an error that names the
            variable and the ranks. A comparison takes some milliseconds for each million
            parameters. From the first step of an epoch in which a rank has no batch, comparisons
            are skipped until the next epoch. After a step that only accumulates gradients, the
            comparison waits for the next update. With `None`, the default, the ranks compare once,
            at the end of `fit`, and rank 0 prints a warning. Before an evaluation a difference
            always raises an error. `False` disables the comparisons.
        scalar_losses: `"mean"` or `"sum"`. The kind of losses that are a single number: losses
            that your own layer adds with `add_loss`, losses that a loss function has already
            reduced, and those of your model's own `compute_loss`. Means are averaged over the
            ranks, and sums are added. With `None`, the default, they are treated as means over the
            samples, with a warning.
        sparse_as_dense: Boolean. With `False`, the rows of sparse gradients, such as TensorFlow's
            gradient of an `Embedding`, are gathered, and the optimizer receives the rows of all
            ranks, as in one process. Rows that all samples share, such as those of positions, are
            added up over the ranks, but not in steps that run eagerly. With `True` sparse gradients
            are reduced as dense ones, with all rows of the variable. Rows that occur several times
            are then added up before the optimizer receives them. All ranks must pass the same
            value. Defaults to `False`.
        validation: `"same"` if all ranks evaluate the same data, `"split"` if each rank evaluates
            its own shard. This affects metrics that count, such as `TruePositives`: the same data
            count only once. With `None`, the default, the ranks compare the contents of arrays.
            The counts of datasets, and of arrays that differ, are added, with a warning unless
            `split_data` has made them. All ranks must pass the same value.
        wire_dtype: `"bfloat16"`, `"float16"` or `"float32"`. The dtype in which gradients are sent
            to other hosts. 16 bits halve the bytes, and round: once for two hosts, and up to n
            times for n hosts. bfloat16 has 8 bits of precision, and float16 has 11. In float16 all
            hosts multiply by one power of two, so that no sum overflows; elements that are more
            than 2^28 / n times smaller than the largest lose bits. Sums are computed in float32,
            all ranks receive the same bits, and within a host nothing is rounded. The values of
            sparse gradients are rounded once, before they are gathered. Gradients of float64,
            metrics and `ddl.allreduce` are never rounded. Use it where the network limits the
            speed. An optimizer in a `DistributedOptimizer` has its own
            options. Defaults to the environment variable `EASYDDL_WIRE_DTYPE`, or else to float32.
            All ranks must pass the same value.

    Raises:
        ValueError: If `bucket_bytes` is not a positive integer, if `uneven`, `scalar_losses`,
            `validation` or `wire_dtype` has an invalid value, if `check_replicas` is not a positive
            integer, `None` or `False`, if `sparse_as_dense` is not a boolean, or if an environment
            variable that takes the place of an argument is invalid.
        TypeError: At `fit`, if the class was passed instead of an instance.
        ValueError: At `fit`, if it is passed more than once. On all ranks, if they train for
            different numbers of epochs, or differ in other arguments, data or configurations that
            must be equal.
        RuntimeError: On all ranks, if they have different numbers of batches and
            `uneven="error"`; if `check_replicas` finds a difference; or if the model's own `fit`
            does not call `keras.Model.fit`. At `evaluate`, if the ranks' weights differ.

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
        validation: Literal["same", "split"] | None = None,
        wire_dtype: Literal["bfloat16", "float16", "float32"] | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction_options.requested(bucket_bytes, sparse_as_dense, wire_dtype)
        self.uneven = validators.one_of("uneven", uneven, _UNEVEN)
        self.scalar_losses = validators.one_of(
            "scalar_losses", scalar_losses, scalar.KINDS, " for means with a warning"
        )
        self.validation = validators.one_of("validation", validation, evaluation.VALIDATIONS, "")
        if check_replicas is not None and check_replicas is not False:
            otherwise = ", None for the end of fit(), or False for never"
            validators.positive_integer("check_replicas", check_replicas, otherwise)
        self.check_replicas = check_replicas
        self._validation = contextlib.ExitStack()
        self._has_validated = False
        self._checked = 0  # the step of this epoch after which the ranks were compared
        if self.check_replicas:
            self.async_safe = False

    def set_params(self, params: dict[str, Any] | None) -> None:
        # The later callbacks get the same dict.
        if params and not world.is_root():
            params["verbose"] = 0
        super().set_params(params)

    def set_model(self, model: keras.Model) -> None:
        super().set_model(model)
        active, fit = evaluation.current(model), fit_context.current(model)
        if active is not None:
            shared_fit.begin_evaluation(active, self, fit is not None)
        elif fit is not None:
            instances.require_single(fit.callbacks, DDLCallback, DDLGlobalVariablesCallback)
            shared_fit.begin(fit)
            hooks.act_on_root(fit)
            if scaling_measurement.is_wanted():
                scaling_measurement.begin(fit)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        fit = fit_context.current(self.model)
        if fit is None:
            raise RuntimeError(
                f"{type(self.model).__name__}.fit() does not call keras.Model.fit(), where "
                "easyddl hooks the optimizer. Call it there, or wrap the optimizer in "
                "`ddl.DistributedOptimizer` and leave DDLCallback out."
            )
        shared_fit.begin_steps(fit, self.params.get("steps"))

    def after_first_step(self, fit: Any) -> None:
        global_batch.warn(fit)

    def after_steps(self, fit: Any) -> None:
        if world.size() > 1:
            epoch_end.end_steps(fit, self.uneven)

    def after_fit(self, fit: Any) -> None:
        if world.size() > 1:
            shared_fit.end(fit)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._has_validated, self._checked = False, 0
        fit = fit_context.current(self.model)
        if fit is not None:
            fit.begin_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.check_replicas or world.size() == 1:
            return
        model = self.model  # this access makes Keras copy JAX's state into the variables
        fit = fit_context.current(model)
        is_due = fit.steps - self._checked >= self.check_replicas
        if is_due and fit_context.all_ranks_have_batches(model):
            self._checked = fit.steps
            replicas.check(model, f"after step {fit.steps} of epoch {fit.epoch + 1} of fit()")

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        active, fit = evaluation.current(self.model), fit_context.current(self.model)
        if active is not None and world.size() > 1:
            active.is_shared = self._has_validated = True
            active.validation = self.validation
            active.is_held_out = fit is not None and fit.validates_held_out_samples
        # A long validation must not end the job as a stall, even if only the root validates.
        if fit is not None:
            fit.step_ends.finish()
            self._validation = fit.at_end.enter_context(contextlib.ExitStack())
            self._validation.enter_context(world.activity("validation"))

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        self._validation.close()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        fit = fit_context.current(self.model)
        if fit is not None:
            fit.step_ends.finish()
        if world.size() == 1 or fit is None:
            return
        epoch_end.end_epoch(fit, {} if logs is None else logs, self._has_validated)
