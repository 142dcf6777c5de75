"""A learning rate that rises to its full height over the first steps."""

import keras
from keras import ops
from keras.optimizers import schedules

from easyddl.optimizers.scale_lr import checked_rate, factor_of, ramp
from easyddl.runtime import validators, world


@keras.saving.register_keras_serializable("easyddl")
class LearningRateWarmup(schedules.LearningRateSchedule):
    """Scales a learning rate with the number of ranks, gradually over the first steps.

    Right at the start, when the weights change fastest, a rate of `k` times the usual one harms
    training. So it begins at the rate that suits one rank, and rises by the same amount at every
    step, until it is `factor` times as large after `warmup_steps`:

    `rate(step) = learning_rate(step) * (1 + (factor - 1) * min(1, step / warmup_steps))`

    where `factor` is the number of ranks, or its square root. A schedule given as
    `learning_rate` counts its steps from the start of training, as without warmup.

    SGD and RMSprop with momentum keep a velocity that holds the rates of past steps. While the
    rate rises these are too small, so `DDLCallback` and `DistributedOptimizer` scale the velocity
    with it (the momentum correction of Goyal et al.), unless `correct_momentum` is `False`.

    A model that is saved with this schedule needs easyddl to be loaded, and keeps the number of
    ranks that it was made for.

    Args:
        learning_rate: Float, or a Keras learning rate schedule. What suits one rank.
        warmup_steps: Integer. Optimizer steps until the full rate; 0 for none.
        warmup_epochs: Number. Instead of `warmup_steps`, with `steps_per_epoch`.
        steps_per_epoch: Integer. The steps that each rank takes in an epoch.
        rule: `"linear"` for a factor of the number of ranks (SGD), `"sqrt"` for its square root
            (Adam and its relatives: `scale_lr` says what becomes of their betas and epsilon),
            `"none"` for 1.
        size: Integer. The number of ranks; `None` for that of this job.
        correct_momentum: Boolean. Whether a velocity is scaled with the rate.
        gradient_accumulation_steps: Integer. That of the optimizer, if it accumulates: a step is
            an update then, and so is each of `warmup_steps`.
        name: String.

    Raises:
        ValueError: If an argument is out of range, or both or neither of `warmup_steps` and
            `warmup_epochs` are given.
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

    is_scaled = True  # with the number of ranks: nothing for `scale_lr`

    def __init__(
        self,
        learning_rate,
        warmup_steps=None,
        *,
        warmup_epochs=None,
        steps_per_epoch=None,
        rule="linear",
        size=None,
        correct_momentum=True,
        gradient_accumulation_steps=1,
        name="LearningRateWarmup",
    ):
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

    def __call__(self, step):
        with keras.name_scope(self.name):
            update = ops.floor_divide(step, self.gradient_accumulation_steps)
            full = self.learning_rate
            if isinstance(full, schedules.LearningRateSchedule):
                full = full(update)
            full = ops.convert_to_tensor(full)
            return full * ops.cast(self._ramp(update), full.dtype)

    def growth(self, step):
        """How many times the rate of the update before the ramp makes that of this one.

        Args:
            step: Integer or tensor. As `__call__` takes it.
        """
        update = ops.floor_divide(step, self.gradient_accumulation_steps)
        return self._ramp(update) / self._ramp(ops.maximum(update - 1, 0))

    def _ramp(self, update):
        if self.warmup_steps == 0:
            return ops.convert_to_tensor(self.factor, "float32")
        done = ops.minimum(ops.cast(update, "float32") / self.warmup_steps, 1.0)
        return ramp(done, self.factor)

    def get_config(self):
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
    def from_config(cls, config):
        config = dict(config)
        if isinstance(config["learning_rate"], dict):
            config["learning_rate"] = keras.saving.deserialize_keras_object(config["learning_rate"])
        return cls(**config)


def _steps(steps, epochs, steps_per_epoch):
    if (steps is None) == (epochs is None):
        raise ValueError(
            "Give one of `warmup_steps` and `warmup_epochs` (with `steps_per_epoch`). "
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
