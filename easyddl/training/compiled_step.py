"""The compiled training step of a model, kept from one fit to the next."""

import contextlib
import dataclasses

import numpy as np

from easyddl import backends
from easyddl.collectives import arrays, variables
from easyddl.compat import keras_trainer, patches
from easyddl.optimizers import momentum_correction
from easyddl.reducer import batch_weight
from easyddl.runtime import join, world
from easyddl.training import loss_weight, optimizer_hook

_ATTRIBUTE = "_easyddl_step"

_under_way = []  # of the fits


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
        attendance: `Attendance` of its exchanges.
        weight: `BatchWeight` of its batches.
        meter: `StepMeter`, which counts what it takes.
        root_rank: Integer. The rank from which all take the variables of optimizers that are
            found late; `None` if each rank starts from its own.
        is_traced: Boolean. Whether a fit has had a batch, and so the step has its variables.
    """

    def __init__(self, model, settings):
        self._model = model
        self._settings = settings
        self._compilation = keras_trainer.compilation_of(model)
        self.attendance = join.Attendance()
        self.weight = batch_weight.BatchWeight()
        self.meter = backends.require().StepMeter()
        self.root_rank = None
        self.is_traced = False
        self._hooks = contextlib.ExitStack()  # for the length of a fit
        self._averagers = {}  # with their optimizers, by the identities of these
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
        return [optimizer for optimizer, _ in self._averagers.values()]

    def hook(self, optimizer):
        """Has an optimizer average its gradients, for the length of the fit."""
        is_new = id(optimizer) not in self._averagers
        if is_new:
            made = optimizer_hook.averager(
                optimizer,
                self.weight,
                self._settings.bucket_bytes,
                self._settings.sparse_as_dense,
            )
            self._averagers[id(optimizer)] = optimizer, made
        self._hooks.callback(optimizer_hook.hook(optimizer, self._averagers[id(optimizer)][1]))
        self._hooks.callback(momentum_correction.hook(optimizer))
        if is_new and self.attendance.is_in_step:
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
        self.attendance.__enter__()
        _under_way.append(self)
        self.root_rank = None
        self._hooks.enter_context(self.weight.of_fit())
        self._hooks.callback(
            loss_weight.hook(self._model, self.weight, self._settings.scalar_losses)
        )
        self._model.train_function = self._train_function
        if loss_weight.changes_tests_of(self._model):
            self._model.test_function = self._test_function
        return self

    def __exit__(self, kind, error, traceback):
        self._hooks.close()
        _under_way.remove(self)
        self.attendance.__exit__(kind, error, traceback)
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
        self.attendance.close()
        for _, averager in self._averagers.values():
            averager.close()
        self._averagers.clear()


def current():
    """The step that the innermost fit is taking or tracing, or `None`."""
    step = _under_way[-1] if _under_way else None
    return step if step is not None and step.attendance.is_in_step else None


def of(model):
    """The step that the model's fits share; `None` if there is none."""
    return vars(model).get(_ATTRIBUTE)


def drop(model):
    """Has the next fit compile another step. All ranks must call it together."""
    if of(model) is not None:
        of(model).close()


def for_fit(model, settings):
    """The step of a fit that begins: the kept one, if it is valid on all ranks, or a new one.

    All ranks must call it together.

    Args:
        model: A compiled Keras model.
        settings: `Settings`.
    """
    kept = of(model)
    if kept in _under_way:
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
    made = CompiledStep(model, settings)
    made.attach()
    return made
