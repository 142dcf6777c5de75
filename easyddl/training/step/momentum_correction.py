"""Momentum correction: scales the velocity when the learning rate changes.

In papers SGD with momentum is `v = m * v + g; w = w - rate * v`. Keras stores `rate * v` instead of
`v`, so a new rate does not apply to the gradients of past steps. Both forms become equal if the
velocity is multiplied by the ratio of the new rate to the old one: see Goyal et al., 2017, section
3 (https://arxiv.org/abs/1706.02677).
"""

import keras
from keras import ops

from easyddl import backends
from easyddl.compat import keras_optimizer, patches


def velocities(optimizer):
    """Returns the variables of an optimizer that contain its learning rate as a factor."""
    if not optimizer.built:
        return []
    if isinstance(optimizer, keras.optimizers.SGD) and optimizer.momentum != 0:
        return optimizer.momentums
    if isinstance(optimizer, keras.optimizers.RMSprop) and optimizer.momentum > 0:
        return keras_optimizer.momentums_of_rmsprop(optimizer)
    return []


def scale(optimizer, growth):
    """Multiplies the velocities of an optimizer.

    Args:
        optimizer: A Keras optimizer.
        growth: Number or scalar tensor. The ratio of the new learning rate to the old one.
    """
    for velocity in velocities(innermost(optimizer)):
        velocity.assign(velocity * ops.cast(growth, velocity.dtype))


def innermost(optimizer):
    """Returns the optimizer that has the rate: the one inside a `LossScaleOptimizer`, if any."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def hook(optimizer, lasts=False):
    """Makes an optimizer with a `LearningRateWarmup` scale its velocities with the rate.

    The hook is in the function that updates the variables. That function is not called in steps
    that only accumulate gradients, or that are skipped because the loss scale was too large.

    Args:
        optimizer: A Keras optimizer.
        lasts: Boolean. Whether the hook outlasts a fit.

    Returns:
        Function without arguments that removes the hook. It does nothing if the optimizer was
        already hooked or needs no correction.
    """
    optimizer = innermost(optimizer)
    schedule = keras_optimizer.learning_rate_of(optimizer)
    corrects = getattr(schedule, "correct_momentum", False)  # of a `LearningRateWarmup`
    if not corrects or keras_optimizer.UPDATE in vars(optimizer):
        return lambda: None
    original = getattr(optimizer, keras_optimizer.UPDATE)

    def update(grads, trainable_variables, learning_rate):
        growth = schedule.growth(keras_optimizer.steps_of(optimizer))
        # Most steps follow the warmup. In these the velocities stay unchanged.
        backends.require().unless(growth == 1.0, lambda: scale(optimizer, growth))
        return original(grads, trainable_variables, learning_rate)

    return patches.replace(optimizer, keras_optimizer.UPDATE, update, lasts)
