"""The compiled training step of a model, which several fits share."""

import contextlib

import numpy as np

from easyddl import backends
from easyddl.collectives import arrays, variables
from easyddl.compat import keras_optimizer, keras_trainer, patches
from easyddl.runtime import world
from easyddl.steps import context
from easyddl.steps.batch_weight import BatchWeight
from easyddl.steps.join import Join
from easyddl.training.step import loss_weight, momentum_correction, optimizer_hook

_ATTRIBUTE = "_easyddl_step"


class CompiledStep:
    """The state of a model's compiled training step. All fits of the model share it.

    The model refers to it until it is closed.

    Keras compiles a step once and uses it again in later fits, until the model is compiled again.
    On TensorFlow a layer that is frozen between two fits is therefore still trained in the second
    one. The step contains the numbers under which the ranks have registered its collectives, so the
    registrations live as long as the step.

    As a context manager it hooks the step for the length of one fit. An exception closes the step
    together with the fit, because the ranks may have left its collectives at different points.

    Args:
        model: A compiled Keras model.
        reduction: `ReductionOptions`.
        scalar_losses: The argument of `DDLCallback`.

    Attributes:
        join: The `Join` of the step's reducers.
        weight: The `BatchWeight` of the step's batches.
        meter: The `StepMeter` that counts the steps and their samples.
        root_rank: Integer. The rank that broadcasts the variables of optimizers that a step
            discovers; `None` if each rank keeps its own variables.
        is_traced: Boolean. Whether a fit has had a batch, so that the step has its variables.
        used_variables: Function that returns a list of the variables that the traced step uses, if
            the backend knows them.
    """

    def __init__(self, model, reduction, scalar_losses):
        self._model = model
        self._reduction, self._scalar_losses = reduction, scalar_losses
        self._compilation = keras_trainer.compilation_of(model)
        self._exchange = context.exchange()
        self.join = Join()
        self.weight = BatchWeight(backends.require().is_current)
        self.meter = backends.require().step_meter()
        self.root_rank = None
        self.is_traced = False
        self.used_variables = list
        self._hooks = contextlib.ExitStack()  # removed at the end of each fit
        self._reducers = {}  # pairs of an optimizer and its reducer, by the optimizer's id
        self._train_function = None
        self._test_function = None
        patches.add(model, _ATTRIBUTE, self, lasts=True)

    def is_valid(self, reduction, scalar_losses):
        """Returns whether a fit with these arguments can use the step that is already compiled."""
        if self._exchange is not context.exchange():
            return False  # its collectives belong to another one, which may be broken
        is_same = (self._reduction, self._scalar_losses) == (reduction, scalar_losses)
        return is_same and keras_trainer.compilation_of(self._model) is self._compilation

    @property
    def optimizers(self):
        """The optimizers that are known to apply gradients in the step."""
        return [optimizer for optimizer, _ in self._reducers.values()]

    def hook(self, optimizer):
        """Makes an optimizer average its gradients until the fit ends."""
        is_new = id(optimizer) not in self._reducers
        if is_new:
            reducer = optimizer_hook.create_reducer(optimizer, self._reduction, self.weight)
            self._reducers[id(optimizer)] = optimizer, reducer
        self._hooks.callback(optimizer_hook.hook(optimizer, self._reducers[id(optimizer)][1]))
        self._hooks.callback(momentum_correction.hook(optimizer))
        if is_new and self.join.is_in_step:
            self._broadcast_variables(optimizer)

    def _broadcast_variables(self, optimizer):
        """Broadcasts the variables of an optimizer that a step has discovered."""
        outside = backends.require().outside_of_step()
        if world.size() > 1 and optimizer.built and None not in (self.root_rank, outside):
            with outside:
                variables.broadcast_variables(optimizer.variables, self.root_rank)

    def forget_weights(self):
        """Makes the bits of the next step independent of the steps before, as in a new job.

        All ranks call it together, after a step whose results are computed.
        """
        for optimizer, reducer in self._reducers.values():
            # A `DistributedOptimizer` keeps the reducer that it had before the fit.
            optimizer_hook.reducer_of(optimizer, reducer).forget_weights()

    def reduced_in_last_step(self):
        """Returns whether gradients are known to be averaged in the last step, which is done.

        An optimizer that accumulates gradients averages them only in a step that updates.
        """
        accumulating = [each for each in self.optimizers if optimizer_hook.reduces_by_update(each)]
        others = [each for each in self.optimizers if each not in accumulating]
        counts = [
            (int(keras_optimizer.steps_of(each).numpy()), each.gradient_accumulation_steps)
            for each in accumulating
        ]
        return (
            not counts
            or any(count > 0 and count % window == 0 for count, window in counts)
            or any(keras_optimizer.updates_of(each) > 0 for each in others)
        )

    def save_train_function(self):
        """Stores the train function for later fits.

        Call it after Keras has created the function, and before anything wraps it.
        """
        self._train_function = backends.require().unwrapped(self._model.train_function)

    def note_variables(self, used_variables):
        """Stores `used_variables`: see `Backend.noting_variables`."""
        self.used_variables = used_variables

    def __enter__(self):
        self.join.start_fit()
        self.root_rank = None
        self._hooks.callback(self.weight.clear)
        self._hooks.callback(loss_weight.hook(self._model, self.weight, self._scalar_losses))
        self._model.train_function = self._train_function
        if loss_weight.changes_test_function(self._model):
            self._model.test_function = self._test_function
        return self

    def __exit__(self, kind, error, traceback):
        self._hooks.close()
        # A later fit without easyddl's callbacks must compile a step without collectives.
        self._model.train_function = None
        if loss_weight.changes_test_function(self._model):
            self._test_function = backends.require().unwrapped(self._model.test_function)
            self._model.test_function = None
        if kind is not None:
            self.close()

    def close(self):
        """Closes the step's collectives. The next fit compiles another step."""
        if of(self._model) is self:
            del vars(self._model)[_ATTRIBUTE]
        self.join.close()
        for _, reducer in self._reducers.values():
            reducer.close()
        self._reducers.clear()


def of(model):
    """Returns the step that the model's fits share; `None` if there is none."""
    return vars(model).get(_ATTRIBUTE)


def drop(model):
    """Closes the model's step, so that the next fit compiles another one. Collective."""
    if of(model) is not None:
        of(model).close()


def drop_constants(model):
    """Drops the model's compiled functions, which contain values of layers that have changed.

    These are the step of its fits, and the functions of `evaluate` and `predict`. Collective.
    """
    drop(model)
    drop_test_constants(model)


def drop_test_constants(model):
    """Makes `evaluate` and `predict` compile their functions again: see `drop_constants`."""
    model.test_function = None
    model.predict_function = None


def for_fit(model, reduction, scalar_losses):
    """Returns the step for a new fit: the existing one if it is valid on all ranks, or a new one.

    The function is a collective.

    Args:
        model: A compiled Keras model.
        reduction: `ReductionOptions`.
        scalar_losses: The argument of `DDLCallback`.

    Raises:
        RuntimeError: If another fit of the same model is active.
    """
    existing = of(model)
    if existing is not None and any(each.step is existing for each in context.active()):
        raise RuntimeError(
            "model.fit() was called while another fit of the same model is active, for example by "
            "a callback. The ranks cannot distinguish the steps of the two fits. Call it after "
            f"the other fit. Received: model {model.name!r}"
        )
    is_valid = existing is not None and existing.is_valid(reduction, scalar_losses)
    if world.size() > 1:
        # If only one rank compiled a new step, it would wait for the others to register its
        # collectives.
        is_valid = bool(arrays.allreduce(np.array(is_valid), op="min"))
    if is_valid:
        return existing
    drop(model)
    return CompiledStep(model, reduction, scalar_losses)
