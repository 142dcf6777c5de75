"""The momentum correction: a velocity grows with the learning rates that it holds.

SGD with momentum is `v = m * v + g; w = w - rate * v` in papers. Keras keeps `rate * v` in its
place, so that a rate that has just grown does not reach the gradients of past steps. Multiplying
the velocity by what the rate has grown by makes both the same: Goyal et al., 2017, section 3
(https://arxiv.org/abs/1706.02677).
"""

import keras
from keras import ops

from easyddl import backends
from easyddl.compat import keras_optimizer
from easyddl.optimizers.warmup import LearningRateWarmup


def velocities(optimizer):
    """The variables of an optimizer into which it has multiplied its rate."""
    if not optimizer.built:
        return []
    if isinstance(optimizer, keras.optimizers.SGD) and optimizer.momentum != 0:
        return optimizer.momentums
    if isinstance(optimizer, keras.optimizers.RMSprop) and optimizer.momentum > 0:
        return keras_optimizer.momentums_of_rmsprop(optimizer)
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
    schedule = keras_optimizer.learning_rate_of(optimizer)
    corrects = isinstance(schedule, LearningRateWarmup) and schedule.correct_momentum
    if not corrects or keras_optimizer.has_own_update(optimizer):
        return lambda: None
    original = keras_optimizer.update_of(optimizer)

    def update(grads, trainable_variables, learning_rate):
        growth = schedule.growth(keras_optimizer.steps_of(optimizer))
        # Most steps come after the rise, and need not go over all velocities.
        backends.require().unless(growth == 1.0, lambda: scale(optimizer, growth))
        return original(grads, trainable_variables, learning_rate)

    return keras_optimizer.replace_update(optimizer, update)
