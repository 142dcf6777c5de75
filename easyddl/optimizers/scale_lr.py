"""Scales learning rates with the number of ranks."""

from __future__ import annotations

import collections
import copy
import math
from typing import Literal, TypeAlias, overload

from keras.optimizers import schedules

from easyddl.runtime import validators, world

_Rule: TypeAlias = Literal["linear", "sqrt", "none"]

_RULES = {
    "linear": lambda size: size,
    "sqrt": math.sqrt,
    "none": lambda size: 1,
}

# The last rates that have been scaled. They are compared by identity: a rate that a script computes
# from one of them is another object.
_scaled_rates: collections.deque[float] = collections.deque(maxlen=1000)

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


@overload
def scale_lr(lr: float, rule: _Rule = "linear") -> float: ...


@overload
def scale_lr(
    lr: schedules.LearningRateSchedule, rule: _Rule = "linear"
) -> schedules.LearningRateSchedule: ...


def scale_lr(
    lr: float | schedules.LearningRateSchedule, rule: _Rule = "linear"
) -> float | schedules.LearningRateSchedule:
    """Scales a learning rate with the number of ranks.

    With `k` ranks every update averages over `k` times as many samples, and an epoch has `k` times
    fewer updates. A larger learning rate compensates for this.

    The linear rule suits SGD, with and without momentum. With many ranks, also let the rate rise
    over the first epochs: `LearningRateWarmup` does so and replaces this function.

    The square root rule suits Adam and similar optimizers. The complete rule has three more parts,
    with which Adam averages over as many samples as before: `beta_1` becomes
    `1 - k * (1 - beta_1)`, `beta_2` becomes `1 - k * (1 - beta_2)`, and `epsilon` becomes
    `epsilon / sqrt(k)`. This is possible while `k` is less than `1 / (1 - beta_1)`, which is 10 for
    0.9. Near this limit and beyond it, leave `beta_1` unchanged. For RMSprop, `rho` changes like
    `beta_2`.

    For a schedule only the rates are scaled, not the numbers of steps. An epoch has `k` times fewer
    steps. Therefore divide `decay_steps` and similar arguments by `k` if they were chosen for one
    rank.

    Args:
        lr: Float, or one of Keras's own learning rate schedules. The learning rate that suits one
            rank. A schedule object is not changed.
        rule: `"linear"` multiplies by the number of ranks `k`, `"sqrt"` by the square root of `k`,
            and `"none"` by 1. Defaults to `"linear"`.

    Returns:
        The scaled learning rate: a Python float, or a new schedule of the same class. This class
        belongs to Keras, so a model saved with it can be loaded where easyddl is not installed.

    Raises:
        ValueError: If the rule is unknown, or if a rate is negative, infinite or not a number, or
            has already been scaled by this function.
        TypeError: If `lr` is neither a number nor one of Keras's own schedules.

    Example:
    ```python
    import easyddl as ddl

    optimizer = keras.optimizers.SGD(ddl.scale_lr(0.01))

    schedule = keras.optimizers.schedules.CosineDecay(1e-3, decay_steps=1000)
    optimizer = keras.optimizers.Adam(ddl.scale_lr(schedule, rule="sqrt"))

    k = ddl.size()  # the complete rule
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
    scaled = float if rule == "none" else _noted
    if type(lr) in _RATES:
        return _scale_schedule(lr, factor, scaled)
    if isinstance(lr, schedules.LearningRateSchedule):
        if getattr(lr, "is_scaled", False):
            raise TypeError(
                "This schedule already scales its rate with the number of ranks. Pass it to the "
                f"optimizer without `scale_lr`. Received: lr of type {type(lr).__name__}"
            )
        raise TypeError(
            "`scale_lr` cannot know which numbers of this schedule are learning rates. It supports "
            "Keras's own classes, not their subclasses. Multiply the rates by `ddl.size()`, or "
            "its square root, when you create the schedule. "
            f"Received: lr={lr!r} of type {type(lr).__name__}"
        )
    return scaled(checked_rate(lr, "lr") * factor)


def _noted(rate):
    """Records a rate that has been scaled, and returns it."""
    _scaled_rates.append(rate)
    return rate


def ramp(done, factor):
    """Returns the factor of the learning rate during a linear warmup.

    Args:
        done: Number or tensor. The completed fraction of the warmup, from 0 to 1.
        factor: Number. The factor at the end of the warmup.
    """
    return 1.0 + (factor - 1.0) * done


def checked_rate(value, name):
    """Returns a learning rate as a float.

    Args:
        value: The value to check.
        name: String. The name of the argument, for error messages.

    Raises:
        TypeError: If `value` is not a number.
        ValueError: If `value` is negative, infinite or not a number, or has been scaled before.
    """
    require_unscaled(value, name)
    if not validators.is_number(value):
        raise TypeError(
            f"`{name}` must be a number, or one of Keras's learning rate schedules. Pass a Python "
            "float, as in `keras.optimizers.SGD(ddl.scale_lr(0.01))`, or `float(value)` of an "
            "array. "
            f"Received: {name}={value!r} of type {type(value).__name__}"
        )
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"`{name}` must be finite and not negative. Received: {name}={value!r}")
    return float(value)


def require_unscaled(value, name):
    """Raises a `ValueError` if `scale_lr` has returned a value.

    Args:
        value: Any object.
        name: String. The name of the argument.
    """
    if any(value is each for each in _scaled_rates):
        raise ValueError(
            f"`{name}` has already been scaled with the number of ranks, by `scale_lr`. Pass the "
            f"rate that suits one rank. Received: {name}={value!r}"
        )


def factor_of(rule, size):
    """Returns the factor of a learning rate for `size` ranks, by the given rule."""
    if not isinstance(rule, str) or rule not in _RULES:
        raise ValueError(
            f"Argument `rule` must be one of {', '.join(map(repr, _RULES))}. "
            f"Received: rule={rule!r}"
        )
    return _RULES[rule](size)


def _scale_schedule(schedule, factor, scaled):
    # The config may share its lists with the schedule.
    config = copy.deepcopy(schedule.get_config())
    for name in _RATES[type(schedule)]:
        config[name] = _scale_field(config.get(name), factor, scaled, f"lr.{name}")
    return type(schedule).from_config(config)


def _scale_field(value, factor, scaled, path):
    if value is None:  # for example `warmup_target` without a warmup
        return None
    if isinstance(value, (list, tuple)):
        return [scaled(checked_rate(item, f"{path}[{i}]") * factor) for i, item in enumerate(value)]
    return scaled(checked_rate(value, path) * factor)
