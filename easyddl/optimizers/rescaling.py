"""Rescales an optimizer whose training resumes with another number of ranks."""

from keras.optimizers import schedules

from easyddl.compat import keras_optimizer
from easyddl.training.step import momentum_correction


def rescale(optimizer, rate, steps):
    """Adapts an optimizer's state to steps with another number of samples.

    A constant learning rate is multiplied by `rate`, and so is the velocity of SGD or RMSprop with
    momentum, which contains the rates of past steps. A schedule comes from the script, which
    created it for the current number of ranks. For a schedule, `iterations` is set to the number
    of steps that the samples seen so far would have taken.

    Args:
        optimizer: A Keras optimizer that is built.
        rate: Float. The factor of a constant learning rate.
        steps: Number. The factor of the number of steps.
    """
    inner = momentum_correction.innermost(optimizer)
    if isinstance(keras_optimizer.learning_rate_of(inner), schedules.LearningRateSchedule):
        _count_anew(inner, steps)
    else:
        inner.learning_rate = float(inner.learning_rate.numpy()) * rate
        momentum_correction.scale(inner, rate)


def _count_anew(optimizer, steps):
    # Rescales completed updates, and keeps the position in the accumulation window.
    steps_taken = keras_optimizer.steps_of(optimizer)
    count = int(steps_taken.numpy())
    each = optimizer.gradient_accumulation_steps or 1
    steps_taken.assign(round(count // each * steps) * each + count % each)
