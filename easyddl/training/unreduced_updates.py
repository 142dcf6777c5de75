"""Updates outside of fits whose gradients are not reduced.

`train_on_batch` and the script's own loops apply gradients without a `DDLCallback`. The ranks then
train alone, unless the optimizer is a `DistributedOptimizer` or the script reduces the gradients.
"""

import contextlib
import math

from easyddl.hosts import launched_process
from easyddl.reducer import allreduce
from easyddl.runtime import world
from easyddl.steps import context
from easyddl.training.fit_context import FitContext

_TEXT = (
    "easyddl: warning: {what} applied gradients outside of model.fit() without reducing them: "
    "every rank trained alone. {advice}"
)

_OF_KERAS = (
    "Wrap the optimizer before the model is compiled, as in "
    "`optimizer=ddl.DistributedOptimizer(keras.optimizers.SGD(...))`, or reduce the gradients by "
    "ddl.allreduce()."
)

_has_noted = False  # or there is nothing to note


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


def _note(gradients, what, advice):
    global _has_noted
    _has_noted = _has_noted or not launched_process.is_rank_of_several()
    # A fit without easyddl's callbacks warns itself.
    if _has_noted or any(fit.step is None for fit in context.active(FitContext)):
        return
    sizes = [math.prod(each.shape) for each in gradients if each is not None]
    if not sizes or allreduce.take_reduced(sizes):
        return
    _has_noted = True
    world.warn_at_end("update", _TEXT.format(what=what, advice=advice))
