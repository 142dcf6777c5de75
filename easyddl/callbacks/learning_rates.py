"""Callbacks that set a constant learning rate in each epoch or step."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, Literal

import keras

from easyddl.callbacks.own_callback import OwnCallback
from easyddl.compat import keras_callback, keras_optimizer
from easyddl.optimizers.scale_lr import factor_of, ramp, require_unscaled
from easyddl.runtime import notices, validators, world
from easyddl.training.fit import fit_context
from easyddl.training.step import momentum_correction

_warmups: weakref.WeakSet[LearningRateWarmupCallback] = weakref.WeakSet()  # those in use


class LearningRateScheduleCallback(OwnCallback, keras.callbacks.Callback):
    """Sets the learning rate to a multiple of an initial one, for some epochs.

    The rate is always `initial_lr * multiplier`, and does not depend on the previous rate.
    Therefore the multipliers of several such callbacks for consecutive epochs do not compound. Pass
    the callback on all ranks, like any callback that changes the training.

    Args:
        initial_lr: Float. The rate to multiply. For `k` ranks pass a rate that suits `k` ranks, for
            example `ddl.scale_lr(0.1)`.
        multiplier: Float, or a function of the epoch that returns a float. With `staircase=False`
            it is called before every step with a fractional epoch: `2.25` is a quarter into the
            third epoch.
        start_epoch: Integer. The first epoch, counted from 0, whose rate is set. Defaults to 0.
        end_epoch: Integer. The first epoch whose rate is no longer set. Defaults to `None`, which
            means no end.
        staircase: Boolean. Whether the rate stays constant within an epoch. Defaults to `True`.
        steps_per_epoch: Integer. The number of steps in an epoch. Only needed with
            `staircase=False` if Keras cannot know it from the data.
        correct_momentum: Boolean. Whether to scale the velocity of SGD or RMSprop with momentum,
            which contains the rates of past steps, with the rate. Defaults to `False`.

    Raises:
        ValueError: If a number is out of range.
        TypeError: At `fit`, if the optimizer's rate is a schedule, which a callback cannot set.

    Example:
    ```python
    rate = ddl.scale_lr(0.1)
    callbacks = [
        ddl.DDLCallback(),
        ddl.LearningRateWarmupCallback(0.1, warmup_epochs=5),
        ddl.LearningRateScheduleCallback(rate, 0.1, start_epoch=30, end_epoch=60),
        ddl.LearningRateScheduleCallback(rate, 0.01, start_epoch=60),
        ddl.DDLGlobalVariablesCallback(),
    ]
    ```
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        steps_per_epoch: int | None = None,
        correct_momentum: bool = False,
    ) -> None:
        super().__init__()
        self.initial_lr = _positive("initial_lr", initial_lr)
        if not callable(multiplier):
            value = _positive("multiplier", multiplier)
            staircase, multiplier = True, lambda epoch: value
        self.multiplier = multiplier
        self.start_epoch = _positive("start_epoch", start_epoch)
        self.end_epoch = math.inf if end_epoch is None else _positive("end_epoch", end_epoch)
        self.staircase = staircase
        self.steps_per_epoch = steps_per_epoch
        self.correct_momentum = correct_momentum
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        optimizer = momentum_correction.innermost(self.model.optimizer)
        rate = keras_optimizer.learning_rate_of(optimizer)
        if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            raise TypeError(
                f"{type(self).__name__} sets the optimizer's learning rate, which must be a "
                "number, not a schedule. Pass a float to the optimizer, or leave out the callback. "
                f"Received: learning_rate={rate!r}"
            )
        if keras.ops.convert_to_numpy(keras_optimizer.steps_of(optimizer)) == 0:
            self._compare_rates()

    def _compare_rates(self):
        """Warns if one of two rates seems to be that of one rank, and the other that of all."""
        warmup = next((each for each in _warmups if each.model is self.model), None)
        rate, words = self._rate(), "the optimizer's learning rate is"
        if warmup is not None:
            rate, words = warmup.final_lr, "the rate after the warmup is"
        # The optimizer's rate has no effect if this callback sets another one from the beginning.
        factor = _suspicious_factor(rate, self.initial_lr)
        if factor is not None and not (self.is_due(0) and rate < self.initial_lr):
            _warn_of_factor(self, factor, rate, words)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._epoch = epoch
        if self.staircase:
            self._set_at(epoch)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if not self.staircase:
            self._set_at(self._epoch + self._part_of_epoch(batch))
        elif batch == 0:
            # Once more, because a warmup before this callback sets its last rate at this step.
            self._set_at(self._epoch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["learning_rate"] = self._rate()

    def is_due(self, epoch: float) -> bool:
        """Returns whether the rate is set at an epoch, which may be fractional."""
        return self.start_epoch <= epoch < self.end_epoch

    def _set_at(self, epoch):
        if not self.is_due(epoch):
            return
        rate = self.initial_lr * float(self.multiplier(epoch))
        if self.correct_momentum:
            self._scale_velocity(rate)
        self.model.optimizer.learning_rate = rate

    def _scale_velocity(self, rate):
        before = self._rate()
        if before > 0 and rate != before:
            momentum_correction.scale(self.model.optimizer, rate / before)

    def _rate(self):
        return float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))

    def _part_of_epoch(self, batch):
        """Returns the part of the epoch before a batch, which is the same on all ranks."""
        fit = fit_context.current(keras_callback.model_of(self))
        before, of_ranks = (fit.part_before, fit.steps_per_epoch) if fit else (0.0, None)
        steps = self.steps_per_epoch or of_ranks or self.params.get("steps")
        if not steps:
            raise ValueError(
                f"{type(self).__name__} needs the number of steps in an epoch, which Keras does "
                "not know for these data. Pass `steps_per_epoch` to it. Received: steps_per_epoch="
                f"{self.steps_per_epoch!r}"
            )
        return before + batch / steps


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate over the first epochs, from that of one rank to that of all ranks.

    The rate rises by the same amount before every step, from `initial_lr` to `initial_lr` times the
    number of ranks (or its square root). After the warmup the callback no longer sets the rate, so
    that other callbacks can lower it. Place it before `LearningRateScheduleCallback`. If the
    optimizer has a schedule, use `LearningRateWarmup`.

    Args:
        initial_lr: Float. The rate that suits one rank.
        warmup_epochs: Number. The length of the warmup in epochs. Defaults to 5, the value of
            Goyal et al.
        rule: `"linear"` for a factor of the number of ranks (SGD), `"sqrt"` for its square root
            (Adam and similar optimizers), `"none"` for 1. Defaults to `"linear"`.
        steps_per_epoch: Integer. The number of steps in an epoch, if Keras cannot know it from the
            data.
        correct_momentum: Boolean. Whether to scale the velocity of SGD or RMSprop with momentum,
            which contains the rates of past steps, with the rate. Defaults to `True`.

    Raises:
        ValueError: If a number is out of range, or if the rule is unknown.
        TypeError: At `fit`, if the optimizer's rate is a schedule, which a callback cannot set.

    Example:
    ```python
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.fit(x, y, epochs=90, callbacks=[
        ddl.DDLCallback(),
        ddl.LearningRateWarmupCallback(0.1, warmup_epochs=5),
        ddl.DDLGlobalVariablesCallback(),
    ])
    ```

    References:
    - [Goyal et al., 2017](https://arxiv.org/abs/1706.02677), Accurate, Large Minibatch SGD:
      Training ImageNet in 1 Hour, sections 2.2 and 3.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        rule: Literal["linear", "sqrt", "none"] = "linear",
        steps_per_epoch: int | None = None,
        correct_momentum: bool = True,
    ) -> None:
        self.warmup_epochs = _positive("warmup_epochs", warmup_epochs)
        require_unscaled(initial_lr, "initial_lr")
        factor = factor_of(rule, world.size())
        self.final_lr = initial_lr * factor
        super().__init__(
            initial_lr,
            lambda epoch: ramp(self._fraction_done(epoch), factor),
            staircase=False,
            steps_per_epoch=steps_per_epoch,
            correct_momentum=correct_momentum,
        )
        self._is_complete = None

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        _warmups.add(self)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        self._is_complete = None

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        _warmups.discard(self)

    def _compare_rates(self):
        rate = self._rate()
        factor = _suspicious_factor(rate, self.initial_lr)
        # An optimizer with the rate of all ranks is right: the warmup ends at it.
        if factor is not None and rate < self.initial_lr:
            _warn_of_factor(self, factor, rate, "the optimizer's learning rate is")

    def is_due(self, epoch: float) -> bool:
        if self._is_complete is None:
            # A training that resumes after the warmup keeps the restored rate.
            self._is_complete = epoch > self.warmup_epochs
        is_due = not self._is_complete
        self._is_complete = epoch >= self.warmup_epochs
        return is_due

    def _fraction_done(self, epoch):
        return min(1, epoch / self.warmup_epochs) if self.warmup_epochs else 1


def _positive(name, value):
    if not validators.is_number(value) or not 0 <= value < math.inf:
        raise ValueError(f"`{name}` must be a number, 0 or more. Received: {name}={value!r}")
    return value


def _suspicious_factor(one, other):
    """Returns the factor between two rates if it is that of a scaled rate; otherwise `None`."""
    ranks = world.size()
    if ranks == 1 or not one or not other:
        return None
    found = max(one, other) / min(one, other)
    factors = (ranks, math.sqrt(ranks))
    return next((each for each in factors if math.isclose(found, each, rel_tol=1e-5)), None)


def _warn_of_factor(callback, factor, rate, words):
    root = "" if factor == world.size() else "the square root of "
    text = (
        f"warning: {words} {rate:g}, and {type(callback).__name__} got {callback.initial_lr:g}. "
        f"They differ by a factor of {factor:g}, which is {root}the number of ranks. Pass the rate "
        "of one rank to the optimizer and to LearningRateWarmupCallback, and the rate of all "
        "ranks, as in ddl.scale_lr(0.1), to LearningRateScheduleCallback. Without a warmup pass "
        "the rate of all ranks to the optimizer too."
    )
    notices.tell_once(text, text)
