"""Updates outside of fits whose gradients are not reduced.

`train_on_batch` and the script's own loops apply gradients without a `DDLCallback`. The ranks then
train alone, unless the optimizer is a `DistributedOptimizer`, or the script reduces the gradients,
or averages the weights after its updates. What it gathers may be gradients, too, if it is as large.
What it reduces without easyddl, as with mpi4py, is not seen.
"""

import contextlib
import functools
import math

from easyddl.collectives import script
from easyddl.hosts import launched_process
from easyddl.reducer import allreduce
from easyddl.runtime import world
from easyddl.steps import context
from easyddl.training.fit_context import FitContext

_TEXT = (
    "easyddl: warning: {what} applied gradients outside of model.fit() without reducing them"
    "{since}: every rank trained alone, unless the script averages in another way. {advice}"
)

_OF_KERAS = (
    "Wrap the optimizer before the model is compiled, as in "
    "`optimizer=ddl.DistributedOptimizer(keras.optimizers.SGD(...))`, or reduce the gradients by "
    "ddl.allreduce()."
)

# The sizes of the gradients of updates that were noted, while nothing has averaged the weights.
_alone: set[tuple[int, ...]] = set()
_have_averaged = False  # whether the script has averaged weights after such an update


class _Update(context.Scope):
    """An update that was noted, while it runs."""


@contextlib.contextmanager
def noted(gradients):
    """Notes an update of a Keras optimizer that has no hook and runs in no step of a fit.

    As a context it lasts while the update runs, because this may call another method of the
    optimizer, or an inner optimizer.

    Args:
        gradients: List of gradients; `None` for variables without one. It is empty if another
            method, which this one calls, has them.
    """
    if not gradients:
        yield
        return
    if not context.active(_Update):
        _note(gradients, "a Keras optimizer", _OF_KERAS)
    with _Update():
        yield


def note_native(gradients):
    """Notes an update of an optimizer of the framework itself: see `Backend.on_native_update`."""
    # A fit whose steps use such an optimizer warns itself.
    if not context.active(FitContext):
        advice = "Reduce the gradients by ddl.allreduce(), or use a Keras optimizer."
        _note(gradients, "an optimizer of the framework", advice)


@functools.cache
def _is_rank_of_several():
    return launched_process.is_rank_of_several()


def _note(gradients, what, advice):
    # A fit without easyddl's callbacks warns itself.
    if not _is_rank_of_several() or any(fit.step is None for fit in context.active(FitContext)):
        return
    sizes = tuple(sorted(math.prod(each.shape) for each in gradients if each is not None))
    have_gathered = script.take_passed() >= sum(sizes)
    if not sizes or sizes in _alone or have_gathered or allreduce.take_reduced(sizes):
        return
    _alone.add(sizes)
    since = ", after it last averaged the weights" if _have_averaged else ""
    world.warn_at_end("update", _TEXT.format(what=what, since=since, advice=advice))
    allreduce.when_reduced(sizes, lambda: _end_alone(sizes))


def _end_alone(sizes):
    """Withdraws the warning: the script has averaged the weights, which have the same sizes."""
    global _have_averaged
    _have_averaged = True
    _alone.discard(sizes)
    if not _alone:
        world.warn_at_end("update", "")
