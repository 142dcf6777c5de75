"""The variables of a model in training, and whose they are."""

import keras

from easyddl.collectives import variables
from easyddl.compat import keras_layer, keras_optimizer
from easyddl.training import compiled_step
from easyddl.training.layer_state import batch_states
from easyddl.training.moving_statistics import moving_statistics


def optimizers(model):
    """The optimizers of a model: that of `compile`, its attributes, and those its steps used."""
    step = compiled_step.of(model)
    found = [getattr(model, "optimizer", None), *vars(model).values()]
    found += step.optimizers if step is not None else []
    unique = {id(each): each for each in found if isinstance(each, keras.optimizers.Optimizer)}
    inner = {id(each) for optimizer in unique.values() for each in _inside(optimizer)}
    return [optimizer for key, optimizer in unique.items() if key not in inner]


def accumulated_steps(model):
    """How many steps the optimizers have taken that gather gradients over several.

    Returns:
        Integer; `None` if none of them does.
    """
    all_of_them = [each for outer in optimizers(model) for each in (outer, *_inside(outer))]
    accumulating = [each for each in all_of_them if _accumulators(each)]
    counts = [int(keras_optimizer.steps_of(each).numpy()) for each in accumulating]
    return max(counts) if counts else None


def _inside(optimizer):
    """The optimizers that another one calls: it hands them what it has been given."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [*([inner] if inner is not None else []), *getattr(optimizer, "optimizers", [])]


def take_over(model, root_rank):
    """Gives all ranks the variables of one that has taken all steps.

    Moving statistics stay what each rank's own batches have made them. Gradients that an optimizer
    has gathered for its next update become the mean of the ranks' own: none is lost.

    Args:
        model: A built model in training.
        root_rank: Integer. The rank whose variables all get.
    """
    variables.broadcast_variables(shared_variables(model), root_rank)
    accumulated = [a for each in optimizers(model) for a in _accumulators(each)]
    variables.average_variables(accumulated, "accumulated gradients")


def shared_variables(model):
    """The weights and optimizer variables that are the same on all ranks after each step."""
    own = [a for each in optimizers(model) for a in _accumulators(each)]
    of_rank = (*own, *moving_statistics(model), *batch_states(model))
    left_out = {id(variable) for variable in of_rank}
    return [variable for variable in all_variables(model) if id(variable) not in left_out]


def initial_variables(model):
    """The variables that all ranks begin a training with alike."""
    own = {id(variable) for variable in batch_states(model)}
    return [variable for variable in all_variables(model) if id(variable) not in own]


def all_variables(model):
    """The weights of a model, and the variables of its optimizers."""
    return [*model.weights, *(v for each in optimizers(model) for v in each.variables)]


def is_built(model):
    """Whether all layers of a model have their variables."""
    return all(layer.built for layer in keras_layer.layers_of(model))


def _accumulators(optimizer):
    own = keras_optimizer.accumulators_of(optimizer)
    inner = [each for inside in _inside(optimizer) for each in _accumulators(inside)]
    return [each for each in (*own, *inner) if each is not None]
