"""Updates outside of fits whose gradients are not reduced.

`train_on_batch` and the script's own loops apply gradients without a `DDLCallback`. The ranks then
train alone, unless the optimizer is a `DistributedOptimizer`, or the script has passed as many
numbers to the other ranks since the last update as there are gradients. A single update, such as
one that tries out whether a step runs, is not reported. What the script reduces without easyddl, as
with mpi4py, is not seen.
"""

import functools
import math
import weakref

import keras

from easyddl import backends
from easyddl.collectives.passed_numbers import passed
from easyddl.compat import keras_trainer, patches
from easyddl.hosts import launched_process
from easyddl.runtime import world
from easyddl.steps import context

_TEXT = (
    "easyddl: warning: {what} applied gradients outside of model.fit() without reducing them"
    "{since}: {{ranks}} trained alone, unless the script averages without easyddl. {advice}"
)

_OF_KERAS = (
    "Wrap the optimizer before the model is compiled, as in "
    "`optimizer=ddl.DistributedOptimizer(keras.optimizers.SGD(...))`, or reduce the gradients by "
    "ddl.allreduce()."
)


class _Batch(context.Scope):
    """A call of `train_on_batch`.

    Attributes:
        traced: The arguments of `_UpdatesAlone.note` for the update that this call has traced, or
            `None`.
    """

    traced = None


class Noted(context.Scope):
    """An update that is noted, while it runs. It may call other optimizers with its gradients."""


class _UpdatesAlone:
    """The updates of the script that were not reduced, since it last averaged as many numbers."""

    def __init__(self):
        self._count = 0
        self._most = 0  # gradients of one of them
        self._have_averaged = False

    def note(self, size, what, advice, times=1):
        if passed.take(size):
            return
        self._count += times
        self._most = max(self._most, size)
        passed.when_passed(self._most, self._end)
        if self._count > 1:
            since = ", after it last averaged the weights" if self._have_averaged else ""
            text = _TEXT.format(what=what, since=since, advice=advice)
            world.warn_at_end("update", text)
            world.warn_at_sigterm()

    def _end(self):
        """Withdraws the warning: the script has averaged the weights."""
        self._count = self._most = 0
        self._have_averaged = True
        world.warn_at_end("update", "")


_alone = _UpdatesAlone()
_traced = weakref.WeakKeyDictionary()  # `_Batch.traced`, by what Keras creates when it compiles


def watch():
    """Patches what updates variables. Called when easyddl is imported in a job of several ranks."""
    patches.install(keras.Model, "train_on_batch", _noting_batches)
    backends.require().on_native_update(_note_native)


def note(gradients):
    """Notes an update of a Keras optimizer that has no hook and runs in no step of a fit.

    Args:
        gradients: List of gradients; `None` for variables without one.
    """
    _note(gradients, "a Keras optimizer", _OF_KERAS)


def _note_native(gradients):
    """Notes an update of an optimizer of the framework itself: see `Backend.on_native_update`."""
    # A fit whose steps use such an optimizer warns itself.
    if not context.active():
        advice = "Reduce the gradients by ddl.allreduce(), or use a Keras optimizer."
        _note(gradients, "an optimizer of the framework", advice)


@functools.cache
def _is_rank_of_several():
    return launched_process.is_rank_of_several()


def _note(gradients, what, advice):
    # A fit without easyddl's callbacks warns itself.
    if not _is_rank_of_several() or any(fit.step is None for fit in context.active()):
        return
    gradients = [each for each in gradients if each is not None]
    size = sum(math.prod(each.shape) for each in gradients)
    if size == 0:
        return
    if not any(map(backends.require().is_symbolic, gradients)):
        _alone.note(size, what, advice)
    elif batch := context.active(_Batch):
        batch[0].traced = size, what, advice
    else:
        _alone.note(size, what, advice, times=2)  # because it runs again without a call


def _noting_batches(original):
    """Notes, in each call of `train_on_batch`, the update that this or an earlier call traced."""

    @functools.wraps(original)
    def train_on_batch(self, *args, **kwargs):
        with _Batch() as batch:
            result = original(self, *args, **kwargs)
        compilation = keras_trainer.compilation_of(self)
        if batch.traced is not None:
            _traced[compilation] = batch.traced
        if compilation in _traced:
            _alone.note(*_traced[compilation])
        return result

    return train_on_batch
