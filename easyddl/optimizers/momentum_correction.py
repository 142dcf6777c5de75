"""The momentum correction: a velocity grows with the learning rates that it holds.

SGD with momentum is `v = m * v + g; w = w - rate * v` in papers. Keras keeps `rate * v` in its
place, so that a rate that has just grown does not reach the gradients of past steps. Multiplying
the velocity by what the rate has grown by makes both the same: Goyal et al., 2017, section 3
(https://arxiv.org/abs/1706.02677).
"""

import keras
from keras import ops

from easyddl import backends
from easyddl.optimizers.warmup import LearningRateWarmup

_HOOK = "_backend_update_step"


def velocities(optimizer):
    """The variables of an optimizer into which it has multiplied its rate."""
    if not optimizer.built:
        return []
    if isinstance(optimizer, keras.optimizers.SGD) and optimizer.momentum != 0:
        return optimizer.momentums
    if isinstance(optimizer, keras.optimizers.RMSprop) and optimizer.momentum > 0:
        return optimizer._momentums
    return []


def scale(optimizer, growth):
    """Multiplies the velocities of an optimizer."""
    for velocity in velocities(innermost(optimizer)):
        velocity.assign(velocity * ops.cast(growth, velocity.dtype))


def innermost(optimizer):
    """The optimizer that has the rate: inside of a `LossScaleOptimizer`, or this one."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def hook(optimizer):
    """Makes an optimizer with a `LearningRateWarmup` scale its velocities with the rate.

    It does so in the update itself, past accumulation and a loss scale that was too large: both
    skip updates.

    Args:
        optimizer: A Keras optimizer.

    Returns:
        Function that takes the hook off again. It does nothing if the optimizer had one before.
    """
    optimizer = innermost(optimizer)
    schedule = optimizer._learning_rate
    corrects = isinstance(schedule, LearningRateWarmup) and schedule.correct_momentum
    if not corrects or _HOOK in vars(optimizer):
        return lambda: None
    original = getattr(optimizer, _HOOK)

    def update(grads, trainable_variables, learning_rate):
        growth = schedule.growth(optimizer._iterations)
        # Most steps come after the rise, and need not go over all velocities.
        backends.require().unless(growth == 1.0, lambda: scale(optimizer, growth))
        return original(grads, trainable_variables, learning_rate)

    object.__setattr__(optimizer, _HOOK, update)
    return lambda: object.__delattr__(optimizer, _HOOK)
