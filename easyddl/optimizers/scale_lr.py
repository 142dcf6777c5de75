"""Scale learning rates with the number of ranks."""

import copy
import math

import keras
from keras.optimizers import schedules

from easyddl.runtime import validators, world

_RULES = {
    "linear": lambda size: size,
    "sqrt": math.sqrt,
    "none": lambda size: 1,
}

# The fields of Keras's own schedules that are learning rates. The others are
# counts of steps, or fractions of a rate, such as `alpha`.
_RATES = {
    schedules.CosineDecay: ("initial_learning_rate", "warmup_target"),
    schedules.CosineDecayRestarts: ("initial_learning_rate",),
    schedules.ExponentialDecay: ("initial_learning_rate",),
    schedules.InverseTimeDecay: ("initial_learning_rate",),
    schedules.PiecewiseConstantDecay: ("values",),
    schedules.PolynomialDecay: ("initial_learning_rate", "end_learning_rate"),
}


def scale_lr(lr, rule="linear"):
    """Scales a learning rate with the number of ranks.

    Of `k` ranks that each train on a batch, every update averages over a batch
    that is `k` times as large, and there are `k` times fewer updates in an
    epoch. A larger learning rate makes up for this.

    The linear rule suits SGD, with and without momentum. Where it is used for
    many ranks, let the rate rise over the first epochs: see
    `LearningRateWarmup`, which takes the place of this function.

    The square root rule suits Adam and its relatives. In full it has three
    more parts, which keep the averages of Adam as long in samples as they
    were: `beta_1` becomes `1 - k * (1 - beta_1)`, `beta_2` becomes
    `1 - k * (1 - beta_2)`, and `epsilon` becomes `epsilon / sqrt(k)`. That
    exists while `k` is less than `1 / (1 - beta_1)`, which is 10 for 0.9; near
    that, and beyond, `beta_1` is left alone in practice. For RMSprop, `rho` is
    changed as `beta_2` is.

    Only the rates of a schedule are scaled, not its numbers of steps. As an
    epoch has `k` times fewer steps, divide `decay_steps` and the like by `k`
    where they were chosen for one rank.

    Args:
        lr: Float, or one of Keras's own learning rate schedules. The learning
            rate that suits one rank. A schedule is left unchanged.
        rule: `"linear"` multiplies by the number of ranks `k`, `"sqrt"` by
            the square root of `k`, and `"none"` by 1. Defaults to `"linear"`.

    Returns:
        The scaled learning rate: a Python float, or a new schedule of the same
        class. As this is a class of Keras, a model saved with it loads where
        easyddl is not installed.

    Raises:
        ValueError: If the rule is unknown, or a rate is negative, infinite or
            not a number.
        TypeError: If `lr` is neither a number nor one of Keras's own
            schedules.

    Example:
    ```python
    import easyddl as ddl

    optimizer = keras.optimizers.SGD(ddl.scale_lr(0.01))

    schedule = keras.optimizers.schedules.CosineDecay(1e-3, decay_steps=1000)
    optimizer = keras.optimizers.Adam(ddl.scale_lr(schedule, rule="sqrt"))

    k = ddl.size()  # the whole rule
    optimizer = keras.optimizers.Adam(
        ddl.scale_lr(1e-3, rule="sqrt"),
        beta_1=1 - k * (1 - 0.9),
        beta_2=1 - k * (1 - 0.999),
        epsilon=1e-7 / k**0.5,
    )
    ```

    References:
    - linear: [Goyal et al., 2017](https://arxiv.org/abs/1706.02677),
      Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour.
    - sqrt: [Malladi et al., 2022](https://arxiv.org/abs/2205.10287), On the
      SDEs and Scaling Rules for Adaptive Gradient Algorithms; for SGD
      [Krizhevsky, 2014](https://arxiv.org/abs/1404.5997), One weird trick for
      parallelizing convolutional neural networks.
    """
    factor = factor_of(rule, world.size())
    if type(lr) in _RATES:
        return _scale_schedule(lr, factor)
    if isinstance(lr, schedules.LearningRateSchedule):
        if getattr(lr, "is_scaled", False):
            raise TypeError(
                "This schedule scales its rate with the number of ranks itself. Pass it to the "
                f"optimizer without `scale_lr`. Received: lr of type {type(lr).__name__}"
            )
        raise TypeError(
            "`scale_lr` cannot know which numbers of this schedule are "
            "learning rates; it knows Keras's own classes, and not their "
            "subclasses. Multiply its rates by `ddl.size()`, or its square "
            "root, when you make it. "
            f"Received: lr={lr!r} of type {type(lr).__name__}"
        )
    return checked_rate(lr, "lr") * factor


def ramp(done, factor):
    """What a rising rate is multiplied by.

    Args:
        done: Number or tensor. The part of the rise that is done, from 0 to 1.
        factor: Number. What it is multiplied by in the end.
    """
    return 1.0 + (factor - 1.0) * done


def checked_rate(value, name):
    """A number as a float, if it can be a learning rate."""
    if not validators.is_number(value):
        raise TypeError(
            f"`{name}` must be a number, or one of Keras's learning rate schedules. "
            f"{_advice(value)} "
            f"Received: {name}={value!r} of type {type(value).__name__}"
        )
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"`{name}` must be finite and not negative. Received: {name}={value!r}")
    return float(value)


def factor_of(rule, size):
    """What a learning rate is multiplied by for `size` ranks."""
    if not isinstance(rule, str) or rule not in _RULES:
        raise ValueError(
            f"Argument `rule` must be one of {', '.join(map(repr, _RULES))}. "
            f"Received: rule={rule!r}"
        )
    return _RULES[rule](size)


def _scale_schedule(schedule, factor):
    # The config may share its lists with the schedule.
    config = copy.deepcopy(schedule.get_config())
    for name in _RATES[type(schedule)]:
        config[name] = _scale_field(config.get(name), factor, f"lr.{name}")
    return type(schedule).from_config(config)


def _scale_field(value, factor, path):
    if value is None:  # such as the `warmup_target` of no warmup
        return None
    if isinstance(value, (list, tuple)):
        return [checked_rate(item, f"{path}[{i}]") * factor for i, item in enumerate(value)]
    return checked_rate(value, path) * factor


def _advice(value):
    """What to do about a learning rate that is not a number."""
    if isinstance(value, keras.optimizers.Optimizer):
        return (
            "Scale the rate that the optimizer is made with, as in "
            "`keras.optimizers.SGD(ddl.scale_lr(0.01))`."
        )
    if hasattr(value, "shape"):
        return "Pass the value of this array or tensor, `float(value)`."
    if callable(value):
        return "Multiply what this callable returns by `ddl.size()`."
    return "Pass a Python float."
