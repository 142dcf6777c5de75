"""The compiled training step of a model, kept from one fit to the next."""

import contextlib
import dataclasses

import numpy as np

from easyddl import backends
from easyddl.collectives import arrays, variables
from easyddl.compat import keras_trainer, patches
from easyddl.reducer.batch_weight import BatchWeight
from easyddl.runtime import context, world
from easyddl.runtime.join import Join
from easyddl.training import loss_weight, optimizer_hook

_ATTRIBUTE = "_easyddl_step"


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of `DDLCallback` that what is compiled depends on."""

    bucket_bytes: int | None
    sparse_as_dense: bool
    scalar_losses: str | None


class CompiledStep:
    """What the training step of a model holds, and every fit of the model shares.

    Keras compiles a step once, and takes it again in later fits until the model is compiled anew:
    a layer that is frozen in between stays trained. The step holds the numbers under which the
    ranks have registered what it exchanges, so these live as long as the step.

    As a context manager it is the step of a fit. An exception ends the step with the fit, because
    ranks may have left its exchanges at different places.

    Attributes:
        join: `Join` of its reducers.
        weight: `BatchWeight` of its batches.
        meter: `StepMeter`, which counts what it takes.
        root_rank: Integer. The rank from which all take the variables of optimizers that are
            found late; `None` if each rank starts from its own.
        is_traced: Boolean. Whether a fit has had a batch, and so the step has its variables.
    """

    def __init__(self, model, settings, optimizer_hooks=()):
        self._model = model
        self._settings = settings
        self._compilation = keras_trainer.compilation_of(model)
        self.join = Join()
        self.weight = BatchWeight()
        self.meter = backends.require().step_meter()
        self.root_rank = None
        self.is_traced = False
        self._optimizer_hooks = optimizer_hooks
        self._hooks = contextlib.ExitStack()  # for the length of a fit
        self._reducers = {}  # with their optimizers, by the identities of these
        self._train_function = None
        self._test_function = None

    def attach(self):
        """Has the model keep it for later fits, until it is closed."""
        self._detach = patches.add(self._model, _ATTRIBUTE, self)

    def is_valid(self, settings):
        """Whether a fit with these settings can take the step that is compiled."""
        compilation = keras_trainer.compilation_of(self._model)
        return self._settings == settings and compilation is self._compilation

    @property
    def optimizers(self):
        """The optimizers that apply gradients in it, as far as is known."""
        return [optimizer for optimizer, _ in self._reducers.values()]

    def hook(self, optimizer):
        """Has an optimizer average its gradients, for the length of the fit."""
        is_new = id(optimizer) not in self._reducers
        if is_new:
            made = optimizer_hook.reducer_of(
                optimizer,
                self.weight,
                self._settings.bucket_bytes,
                self._settings.sparse_as_dense,
            )
            self._reducers[id(optimizer)] = optimizer, made
        self._hooks.callback(optimizer_hook.hook(optimizer, self._reducers[id(optimizer)][1]))
        for hook in self._optimizer_hooks:
            self._hooks.callback(hook(optimizer))
        if is_new and self.join.is_in_step:
            self._share_variables(optimizer)

    def _share_variables(self, optimizer):
        """Gives all ranks the variables of an optimizer that a step has found."""
        outside = backends.require().outside_of_step()
        if world.size() > 1 and optimizer.built and None not in (self.root_rank, outside):
            with outside:
                variables.broadcast_variables(optimizer.variables, self.root_rank)

    def note_train_function(self):
        """Called once Keras has made the function of a fit's steps, before anything wraps it."""
        self._train_function = backends.require().unwrapped(self._model.train_function)

    def __enter__(self):
        self.join.begin_fit()
        self.root_rank = None
        self._hooks.callback(self.weight.clear)
        self._hooks.callback(
            loss_weight.hook(self._model, self.weight, self._settings.scalar_losses)
        )
        self._model.train_function = self._train_function
        if loss_weight.changes_tests_of(self._model):
            self._model.test_function = self._test_function
        return self

    def __exit__(self, kind, error, traceback):
        self._hooks.close()
        # Without easyddl's callbacks Keras must compile a step that exchanges nothing.
        self._model.train_function = None
        if loss_weight.changes_tests_of(self._model):
            self._test_function = backends.require().unwrapped(self._model.test_function)
            self._model.test_function = None
        if kind is not None:
            self.close()

    def close(self):
        """Ends its exchanges. The next fit compiles another step."""
        if of(self._model) is self:
            self._detach()
        self.join.close()
        for _, reducer in self._reducers.values():
            reducer.close()
        self._reducers.clear()


def current():
    """The step that the innermost fit is taking or tracing, or `None`."""
    step = context.step()
    return step if step is not None and step.join.is_in_step else None


def of(model):
    """The step that the model's fits share; `None` if there is none."""
    return vars(model).get(_ATTRIBUTE)


def drop(model):
    """Has the next fit compile another step. All ranks must call it together."""
    if of(model) is not None:
        of(model).close()


def for_fit(model, settings, optimizer_hooks=()):
    """The step of a fit that begins: the kept one, if it is valid on all ranks, or a new one.

    All ranks must call it together.

    Args:
        model: A compiled Keras model.
        settings: `Settings`.
        optimizer_hooks: Other hooks of each optimizer for the length of a fit: functions of the
            optimizer that return a function that takes the hook off again.
    """
    kept = of(model)
    if kept is not None and any(each.step is kept for each in context.active()):
        raise RuntimeError(
            "model.fit() of a model is called within another one of the same model, by a callback "
            "for example: the ranks could not tell their steps apart. Call it after the other one. "
            f"Received: model {model.name!r}"
        )
    is_valid = kept is not None and kept.is_valid(settings)
    if world.size() > 1:
        # A rank that compiled a step alone would wait for the others to register its exchanges.
        is_valid = bool(arrays.allreduce(np.array(is_valid), op="min"))
    if is_valid:
        return kept
    drop(model)
    made = CompiledStep(model, settings, optimizer_hooks)
    made.attach()
    return made
