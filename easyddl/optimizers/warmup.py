"""A learning rate schedule with a warmup over the first steps."""

from __future__ import annotations

from typing import Any, Literal

import keras
from keras import ops
from keras.optimizers import schedules

from easyddl.optimizers.scale_lr import checked_rate, factor_of, ramp
from easyddl.runtime import validators, world


@keras.saving.register_keras_serializable("easyddl")
class LearningRateWarmup(schedules.LearningRateSchedule):
    """Scales a learning rate with the number of ranks, gradually over the first steps.

    At the start of training the weights change fastest, and a rate of `k` times the usual rate
    harms training. This schedule begins at the rate that suits one rank. The rate rises by the same
    amount at every step, until it is `factor` times as large after `warmup_steps`:

    `rate(step) = learning_rate(step) * (1 + (factor - 1) * min(1, step / warmup_steps))`

    Here `factor` is the number of ranks, or its square root. A schedule passed as `learning_rate`
    counts its steps from the start of training, as without warmup.

    SGD and RMSprop with momentum keep a velocity, which contains the rates of past steps. While the
    rate rises, these rates are too small. Therefore `DDLCallback` and `DistributedOptimizer` scale
    the velocity with the rate (the momentum correction of Goyal et al.), unless `correct_momentum`
    is `False`.

    Before you load a model that was saved with this schedule, `import easyddl`. The model keeps the
    number of ranks for which the schedule was created.

    Args:
        learning_rate: Float, or a Keras learning rate schedule. The rate that suits one rank.
        warmup_steps: Integer. The number of optimizer steps until the full rate; 0 for no warmup.
        warmup_epochs: Number. The length of the warmup in epochs, instead of `warmup_steps`.
            Needs `steps_per_epoch`.
        steps_per_epoch: Integer. The number of steps that each rank takes in an epoch.
        rule: `"linear"` for a factor of the number of ranks (SGD), `"sqrt"` for its square root
            (Adam and similar optimizers: see `scale_lr` for their betas and epsilon), `"none"`
            for 1. Defaults to `"linear"`.
        size: Integer. The number of ranks. Defaults to `None`, the number of ranks of this job.
        correct_momentum: Boolean. Whether the velocity is scaled with the rate. Defaults to `True`.
        gradient_accumulation_steps: Integer. The value of the optimizer's argument of the same
            name. With accumulation `warmup_steps` counts updates. Defaults to 1.
        name: String. The name of the schedule.

    Raises:
        ValueError: If an argument is out of range, or if both or neither of `warmup_steps` and
            `warmup_epochs` are passed.
        TypeError: If `learning_rate` is neither a number nor a Keras schedule.

    Example:
    ```python
    rate = ddl.LearningRateWarmup(0.1, warmup_epochs=5, steps_per_epoch=len(x) // 64)
    model.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse")
    ```

    References:
    - [Goyal et al., 2017](https://arxiv.org/abs/1706.02677), Accurate, Large Minibatch SGD:
      Training ImageNet in 1 Hour, sections 2.2 and 3.
    """

    is_scaled = True  # `scale_lr` raises an error for this schedule, which already scales its rate

    def __init__(
        self,
        learning_rate: float | schedules.LearningRateSchedule,
        warmup_steps: int | None = None,
        *,
        warmup_epochs: float | None = None,
        steps_per_epoch: int | None = None,
        rule: Literal["linear", "sqrt", "none"] = "linear",
        size: int | None = None,
        correct_momentum: bool = True,
        gradient_accumulation_steps: int = 1,
        name: str = "LearningRateWarmup",
    ) -> None:
        super().__init__()
        if not isinstance(learning_rate, schedules.LearningRateSchedule):
            learning_rate = checked_rate(learning_rate, "learning_rate")
        self.learning_rate = learning_rate
        self.warmup_steps = _steps(warmup_steps, warmup_epochs, steps_per_epoch)
        self.size = world.size() if size is None else _count("size", size)
        self.rule = rule
        self.factor = factor_of(rule, self.size)
        self.correct_momentum = bool(correct_momentum)
        self.gradient_accumulation_steps = _count(
            "gradient_accumulation_steps", gradient_accumulation_steps
        )
        self.name = name

    def __call__(self, step: Any) -> Any:
        with keras.name_scope(self.name):
            update = ops.floor_divide(step, self.gradient_accumulation_steps)
            full = self.learning_rate
            if isinstance(full, schedules.LearningRateSchedule):
                full = full(update)
            full = ops.convert_to_tensor(full)
            return full * ops.cast(self._ramp(update), full.dtype)

    def growth(self, step: Any) -> Any:
        """Returns the warmup factor of this update divided by that of the previous update.

        Args:
            step: Integer or tensor. The step, as for `__call__`.
        """
        update = ops.floor_divide(step, self.gradient_accumulation_steps)
        return self._ramp(update) / self._ramp(ops.maximum(update - 1, 0))

    def _ramp(self, update):
        if self.warmup_steps == 0:
            return ops.convert_to_tensor(self.factor, "float32")
        done = ops.minimum(ops.cast(update, "float32") / self.warmup_steps, 1.0)
        return ramp(done, self.factor)

    def get_config(self) -> dict[str, Any]:
        rate = self.learning_rate
        if isinstance(rate, schedules.LearningRateSchedule):
            rate = keras.saving.serialize_keras_object(rate)
        return {
            "learning_rate": rate,
            "warmup_steps": self.warmup_steps,
            "rule": self.rule,
            "size": self.size,
            "correct_momentum": self.correct_momentum,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LearningRateWarmup:
        config = dict(config)
        if isinstance(config["learning_rate"], dict):
            config["learning_rate"] = keras.saving.deserialize_keras_object(config["learning_rate"])
        return cls(**config)


def _steps(steps, epochs, steps_per_epoch):
    if (steps is None) == (epochs is None):
        raise ValueError(
            "Pass either `warmup_steps` or `warmup_epochs` (with `steps_per_epoch`). "
            f"Received: warmup_steps={steps!r}, warmup_epochs={epochs!r}"
        )
    if steps is not None:
        return _count("warmup_steps", steps, least=0)
    if not validators.is_number(epochs) or not 0 <= epochs < 1e9:
        raise ValueError(
            f"`warmup_epochs` must be a number, 0 or more. Received: warmup_epochs={epochs!r}"
        )
    return round(epochs * _count("steps_per_epoch", steps_per_epoch))


def _count(name, value, least=1):
    if not validators.is_integer(value) or value < least:
        raise ValueError(
            f"`{name}` must be an integer, {least} or more. Received: {name}={value!r}"
        )
    return int(value)
