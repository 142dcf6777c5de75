"""The variables of a model in training: which of them are equal on all ranks, and which differ."""

import keras

from easyddl.collectives import variables
from easyddl.compat import keras_layer, keras_optimizer
from easyddl.training import compiled_step
from easyddl.training.layer_state import batch_states
from easyddl.training.moving_statistics import moving_statistics


def optimizers(model):
    """Returns the outermost optimizers of a model.

    These are the optimizer of `compile`, those in the model's attributes, and those that its steps
    have used. An optimizer inside another one is left out.
    """
    step = compiled_step.of(model)
    found = [getattr(model, "optimizer", None), *vars(model).values()]
    found += step.optimizers if step is not None else []
    unique = {id(each): each for each in found if isinstance(each, keras.optimizers.Optimizer)}
    inner = {id(each) for optimizer in unique.values() for each in _inner_optimizers(optimizer)}
    return [optimizer for key, optimizer in unique.items() if key not in inner]


def accumulated_steps(model):
    """Returns the number of steps of the optimizers that accumulate gradients.

    Returns:
        Integer; `None` if no optimizer accumulates gradients.
    """
    flat = [each for outer in optimizers(model) for each in (outer, *_inner_optimizers(outer))]
    accumulating = [each for each in flat if _accumulators(each)]
    counts = [int(keras_optimizer.steps_of(each).numpy()) for each in accumulating]
    return max(counts) if counts else None


def _inner_optimizers(optimizer):
    """Returns the optimizers to which an optimizer passes its gradients."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [*([inner] if inner is not None else []), *getattr(optimizer, "optimizers", [])]


def sync_from_rank(model, root_rank):
    """Broadcasts the variables of a rank that has run all steps. Collective.

    The moving statistics of each rank are left unchanged, because they come from its own batches.
    Accumulated gradients become the mean of the ranks' accumulated gradients, so that none is lost.

    Args:
        model: A built Keras model in training.
        root_rank: Integer. The rank whose variables all ranks receive.
    """
    variables.broadcast_variables(shared_variables(model), root_rank)
    accumulated = [a for each in optimizers(model) for a in _accumulators(each)]
    variables.average_variables(accumulated, "accumulated gradients")


def shared_variables(model):
    """Returns the weights and optimizer variables that are equal on all ranks after each step."""
    accumulated = [a for each in optimizers(model) for a in _accumulators(each)]
    differing = (*accumulated, *moving_statistics(model), *batch_states(model))
    left_out = {id(variable) for variable in differing}
    return [variable for variable in all_variables(model) if id(variable) not in left_out]


def initial_variables(model):
    """Returns the variables that are equal on all ranks at the beginning of a training."""
    left_out = {id(variable) for variable in batch_states(model)}
    return [variable for variable in all_variables(model) if id(variable) not in left_out]


def all_variables(model):
    """Returns the weights of a model and the variables of its optimizers."""
    return [*model.weights, *(v for each in optimizers(model) for v in each.variables)]


def is_built(model):
    """Whether all layers of a model have created their variables."""
    return all(layer.built for layer in keras_layer.layers_of(model))


def _accumulators(optimizer):
    """Returns the variables in which an optimizer and its inner optimizers accumulate gradients."""
    own = keras_optimizer.accumulators_of(optimizer)
    inner = [each for other in _inner_optimizers(optimizer) for each in _accumulators(other)]
    return [each for each in (*own, *inner) if each is not None]
