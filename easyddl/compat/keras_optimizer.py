"""Optimizers."""

from easyddl.compat import patches
from easyddl.compat.names import Name

NAMES = (
    Name(
        "keras.optimizers.Optimizer",
        "_learning_rate",
        "a schedule is not told from a plain rate, so that neither can be warmed up or rescaled",
        is_set=True,
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_iterations",
        "the steps of optimizers that accumulate gradients are not counted",
        is_set=True,
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_accumulated_gradients",
        "ranks with fewer batches lose the gradients that they have accumulated",
        is_set=True,
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_trainable_variables",
        "gradients that are applied without variables cannot be exchanged",
        is_set=True,
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_clip_gradients",
        "optimizers with gradient_accumulation_steps cannot exchange gradients",
        takes=("grads",),
    ),
    Name(
        "keras.optimizers.Optimizer",
        "_backend_update_step",
        "LearningRateWarmup cannot correct the momentum",
        takes=("grads", "trainable_variables", "learning_rate"),
    ),
    Name(
        "keras.optimizers.RMSprop",
        "_momentums",
        "the momentum of RMSprop is not corrected",
        is_set=True,
    ),
    Name(
        "keras.optimizers.LossScaleOptimizer",
        "inner_optimizer",
        "the learning rate inside of a LossScaleOptimizer is not found",
        is_set=True,
    ),
)

CLIP = "_clip_gradients"

_UPDATE = "_backend_update_step"


def learning_rate_of(optimizer):
    """The learning rate as an optimizer keeps it: a variable, or the schedule that it was given."""
    return optimizer._learning_rate


def steps_of(optimizer):
    """The variable that counts all steps.

    `optimizer.iterations` counts updates, which take several steps where gradients accumulate.
    """
    return optimizer._iterations


def accumulators_of(optimizer):
    """The variables, or `None`, in which an optimizer itself accumulates gradients."""
    # It has none before it is built, nor has one that only wraps another.
    return getattr(optimizer, "_accumulated_gradients", None) or []


def trainable_variables_of(optimizer):
    """The variables that an optimizer was built for."""
    return optimizer._trainable_variables


def momentums_of_rmsprop(optimizer):
    """The velocities of a built `RMSprop` with momentum."""
    return optimizer._momentums


def clip_of(optimizer):
    """What clips gradients, between accumulation and the update: a function of their list."""
    return getattr(optimizer, CLIP)


def has_own_update(optimizer):
    """Whether `replace_update` has changed an optimizer."""
    return _UPDATE in vars(optimizer)


def update_of(optimizer):
    """The update itself, which follows accumulation, unscaling and clipping.

    Returns:
        Function of the gradients, the variables and the learning rate.
    """
    return getattr(optimizer, _UPDATE)


def replace_update(optimizer, function):
    """Has an optimizer update by another function.

    Returns:
        Function that undoes the replacement.
    """
    return patches.replace(optimizer, _UPDATE, function)
