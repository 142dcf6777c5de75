"""The calls of `model.fit()` and `model.evaluate()` that are active on this rank."""

import contextlib

_active = []  # the innermost last


class Context:
    """One call of `fit` or `evaluate`, and what must be undone when it ends.

    It is active for as long as it is entered as a context manager. Contexts nest: a fit validates,
    and a callback may train another model.

    Attributes:
        model: The Keras model.
        step: `CompiledStep` that the training steps go through; `None` if no gradients are
            averaged in them.
        at_end: `contextlib.ExitStack` of what to undo when the call ends, in whatever way.
    """

    def __init__(self, model):
        self.model = model
        self.step = None
        self.at_end = contextlib.ExitStack()

    def __enter__(self):
        _active.append(self)
        return self

    def __exit__(self, *error):
        try:
            return self.at_end.__exit__(*error)
        finally:
            _active.remove(self)


def active(kind=Context):
    """The active contexts of a class, the innermost first."""
    return [each for each in reversed(_active) if isinstance(each, kind)]


def of(model, kind=Context):
    """The innermost active context of a model; `None` if there is none."""
    return next((each for each in active(kind) if each.model is model), None)


def step():
    """The `CompiledStep` of the innermost context that has one; `None` if none has."""
    return next((each.step for each in reversed(_active) if each.step is not None), None)


def join():
    """The `Join` of that step; `None` if there is none."""
    innermost = step()
    return None if innermost is None else innermost.join


def require_all_ranks(what):
    """Raises an error if some ranks have no batch in the step of the active fit.

    Such a rank takes part in the gradients' exchange alone, and would never enter another
    collective.

    Args:
        what: String. The collective.
    """
    active_join = join()
    if active_join is not None and active_join.state.uneven:
        raise RuntimeError(
            f"{what} needs all ranks, and some have no more batches in this epoch of model.fit(). "
            "Call it at the end of an epoch, or give all ranks as many batches."
        )
