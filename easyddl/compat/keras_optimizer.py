"""Optimizers."""

import keras

from easyddl.compat.names import Name, several

_OPTIMIZER = "keras.optimizers.Optimizer"
_OF_ONE_RANK = (
    "optimizers that transform gradients there before they accumulate them transform those of one "
    "rank"
)

NAMES = (
    *several(
        _OPTIMIZER,
        {
            "_learning_rate": "neither schedules nor constant rates can be warmed up",
            "_iterations": "the steps of optimizers that accumulate gradients are not counted",
            "_accumulated_gradients": "ranks with fewer batches lose accumulated gradients",
            "_trainable_variables": "gradients applied without variables cannot be reduced",
        },
        is_set=True,
    ),
    *several(
        _OPTIMIZER,
        {
            "_clip_gradients(grads)": "optimizers with gradient_accumulation_steps cannot reduce "
            "gradients",
            "_filter_empty_gradients(grads, vars)": _OF_ONE_RANK,
            "_backend_apply_gradients(grads, trainable_variables)": _OF_ONE_RANK,
            "_backend_increment_gradient_accumulators(grads, acc_grads)": _OF_ONE_RANK,
            "_backend_update_step(grads, trainable_variables, learning_rate)": "LearningRateWarmup "
            "cannot correct the momentum",
        },
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

# The methods that receive gradients before they are accumulated.
ACCUMULATING = (
    "_filter_empty_gradients",
    "_backend_apply_gradients",
    "_backend_increment_gradient_accumulators",
)

CLIP = "_clip_gradients"  # a function of a list of gradients, called before the update

# A function of the gradients, the variables and the learning rate. It updates the variables, after
# accumulation and clipping.
UPDATE = "_backend_update_step"


def learning_rate_of(optimizer):
    """Returns the learning rate as the optimizer keeps it: a variable, or a schedule."""
    return optimizer._learning_rate


def steps_of(optimizer):
    """Returns the variable that counts all steps.

    `optimizer.iterations` counts updates, each of which takes several steps with gradient
    accumulation.
    """
    return optimizer._iterations


def updates_of(optimizer):
    """Returns the number of updates, as an integer."""
    # With gradient accumulation `iterations` is a computed tensor, not a variable.
    return int(keras.ops.convert_to_numpy(optimizer.iterations))


def accumulators_of(optimizer):
    """Returns a list of the variables in which an optimizer itself accumulates gradients."""
    # An optimizer that is not built, or that only wraps another one, has none.
    return getattr(optimizer, "_accumulated_gradients", None) or []


def is_update_next(optimizer):
    """Returns whether the next `apply` of an optimizer that accumulates gradients is an update."""
    return (int(optimizer._iterations) + 1) % optimizer.gradient_accumulation_steps == 0


def accumulated_means(optimizer, grads, variables):
    """Returns what an optimizer that accumulates gradients applies in an update, before clipping.

    Args:
        optimizer: A built Keras optimizer.
        grads: List of the gradients of the step; `None` counts as zero.
        variables: List of the variables of these gradients, which the optimizer was built for.
    """
    scale, steps = optimizer.loss_scale_factor, optimizer.gradient_accumulation_steps
    pairs = zip(optimizer._trainable_variables, accumulators_of(optimizer), strict=True)
    accumulators = {id(variable): accumulator for variable, accumulator in pairs}
    sums = []
    for grad, variable in zip(grads, variables, strict=True):
        accumulator = accumulators[id(variable)]
        unscaled = grad if grad is None or scale is None else grad / scale
        sums.append(accumulator if grad is None else unscaled + accumulator)
    return [each / steps for each in sums]


def trainable_variables_of(optimizer):
    """Returns the variables that an optimizer was built for."""
    return optimizer._trainable_variables


def momentums_of_rmsprop(optimizer):
    """Returns the momentum variables of a built `RMSprop` with momentum."""
    return optimizer._momentums
