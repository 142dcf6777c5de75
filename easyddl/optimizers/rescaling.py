"""What becomes of an optimizer whose training goes on with another number of ranks."""

from keras.optimizers import schedules

from easyddl.compat import keras_optimizer
from easyddl.optimizers import momentum_correction


def rescale(optimizer, rate, steps):
    """Fits an optimizer's state to steps that take another number of samples.

    A plain learning rate is multiplied, and with it the velocity of SGD or RMSprop with momentum,
    which holds the rates of past steps. A schedule belongs to the script, which made it for this
    number of ranks; it is told how many of its steps the samples seen so far would have taken.

    Args:
        optimizer: A Keras optimizer that is built.
        rate: Float. What a plain rate is multiplied by.
        steps: Number. What a number of steps is multiplied by.
    """
    inner = momentum_correction.innermost(optimizer)
    if isinstance(keras_optimizer.learning_rate_of(inner), schedules.LearningRateSchedule):
        _count_anew(inner, steps)
    else:
        inner.learning_rate = float(inner.learning_rate.numpy()) * rate
        momentum_correction.scale(inner, rate)


def _count_anew(optimizer, steps):
    # The steps of this rank, of which an update takes several if gradients accumulate: how far
    # it has come in those of the next update stays.
    steps_taken = keras_optimizer.steps_of(optimizer)
    count = int(steps_taken.numpy())
    each = optimizer.gradient_accumulation_steps or 1
    steps_taken.assign(round(count // each * steps) * each + count % each)
