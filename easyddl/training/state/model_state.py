"""The variables of a model in training: which of them are equal on all ranks, and which differ."""

import keras

from easyddl import backends
from easyddl.collectives import arguments, objects, variables
from easyddl.compat import keras_layer, keras_optimizer
from easyddl.training.state.layer_state import batch_states, tracked_statistics
from easyddl.training.step import compiled_step, optimizer_hook
from easyddl.training.step.inner_optimizers import inner_optimizers, optimizers_in


def optimizers(model):
    """Returns the outermost optimizers of a model.

    These are the optimizer of `compile`, those in the model's attributes, also in lists and dicts,
    and those that its steps have used. An optimizer inside another one is left out.
    """
    step = compiled_step.of(model)
    found = attached_optimizers(model) + (step.optimizers if step is not None else [])
    return _outermost(found)


def attached_optimizers(model):
    """Returns those of `optimizers` that are known before any step."""
    direct = [getattr(model, "optimizer", None), *vars(model).values()]
    containers = [each for each in vars(model).values() if isinstance(each, list | tuple | dict)]
    return _outermost([*direct, *optimizers_in(containers)])


def _outermost(found):
    unique = {id(each): each for each in found if isinstance(each, keras.optimizers.Optimizer)}
    inner = {id(each) for optimizer in unique.values() for each in inner_optimizers(optimizer)}
    return [optimizer for key, optimizer in unique.items() if key not in inner]


def accumulated_steps(model):
    """Returns the number of steps of the optimizers that accumulate gradients.

    Returns:
        Integer; `None` if no optimizer accumulates gradients.
    """
    flat = _with_inner(optimizers(model))
    accumulating = [each for each in flat if keras_optimizer.accumulators_of(each)]
    counts = [int(keras_optimizer.steps_of(each).numpy()) for each in accumulating]
    return max(counts) if counts else None


def _with_inner(outermost):
    return [each for outer in outermost for each in (outer, *inner_optimizers(outer))]


def average_own_state(model, weight=1.0):
    """Averages what each rank collects from its own batches over the ranks. Collective.

    These are the moving statistics, and the gradients that an optimizer has accumulated and not
    yet applied: the mean keeps those of all ranks, where a broadcast or a file keeps one rank's.

    Ranks with equal weights but other moving statistics make different predictions. Training does
    not use the moving statistics, so averaging changes only predictions and saved models.

    Args:
        model: A built Keras model in training.
        weight: Float. The weight of this rank's moving statistics, for example its number of
            batches since the last average.

    Raises:
        RuntimeError: On all ranks, if their models differ.
    """
    variables.average_variables(moving_statistics(model), "moving statistics", weight)
    variables.average_variables(_accumulated_gradients(model), "accumulated gradients")


def moving_statistics(model):
    """Returns the variables of a model's moving statistics that differ between ranks.

    These are the moving statistics of `BatchNormalization` layers, and the running statistics of
    PyTorch's `BatchNorm` and `InstanceNorm` modules.
    """
    return [*tracked_statistics(model), *_untracked(model, lambda state: state.statistics)]


def _accumulated_gradients(model):
    """Returns the variables in which optimizers, and those inside of them, accumulate gradients.

    Those that contain averaged gradients already are left out.
    """
    averaging = filter(optimizer_hook.reduces_by_update, optimizers(model))
    found = [a for each in _with_inner(averaging) for a in keras_optimizer.accumulators_of(each)]
    return [each for each in found if each is not None]


def shared_variables(model):
    """Returns the variables that ranks with the same number of steps merge or compute alike.

    Some layers' state among them may differ: see `layer_state.synced_at_epoch_end`.
    """
    own = (*_accumulated_gradients(model), *moving_statistics(model), *batch_states(model))
    left_out = {id(variable) for variable in own}
    return [variable for variable in all_variables(model) if id(variable) not in left_out]


def initial_variables(model):
    """Returns the variables that are equal on all ranks at the beginning of a training."""
    left_out = {id(variable) for variable in batch_states(model)}
    return [variable for variable in all_variables(model) if id(variable) not in left_out]


def all_variables(model):
    """Returns the weights of a model, the variables of its optimizers, and its untracked state."""
    of_optimizers = [v for each in optimizers(model) for v in each.variables]
    return [*model.weights, *of_optimizers, *untracked_variables(model)]


def untracked_variables(model):
    """Returns the state of a model's layers that is no Keras variable, such as PyTorch's buffers.

    Caches are left out.
    """
    return _untracked(model, lambda state: (*state.statistics, *state.counters, *state.others))


def caches(model):
    """Returns what modules compute from their configuration: PyTorch's non-persistent buffers."""
    return _untracked(model, lambda state: state.caches)


def caches_of_equal_shape(model):
    """Returns the caches that have the same shape and dtype on all ranks. Collective.

    A cache may have grown with the batches of each rank in an earlier fit.
    """
    mine = {
        (i, arguments.comparable_name(each.path), each.shape, each.dtype): each
        for i, each in enumerate(caches(model))
    }
    everywhere = set.intersection(*map(set, objects.allgather_object(list(mine))))
    return [each for key, each in mine.items() if key in everywhere]


def is_built(model):
    """Returns whether all layers of a model have created their variables."""
    return all(layer.built for layer in keras_layer.layers_of(model))


def _untracked(model, select):
    """Returns some of the untracked state of a model's layers, without duplicates."""
    backend = backends.require()
    states = [backend.untracked_state(layer) for layer in keras_layer.layers_of(model)]
    return list({id(v): v for state in states for v in select(state)}.values())
