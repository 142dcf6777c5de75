"""The calls of `model.fit()` and `model.evaluate()` that are active on this rank."""

import contextlib

_active: list["Context"] = []  # the innermost last


class Context:
    """One call of `fit` or `evaluate`, with the changes that its end must undo.

    A context is active while it is entered as a context manager. Contexts nest: a fit validates,
    and a callback may train another model.

    Attributes:
        model: The Keras model.
        step: The `CompiledStep` of the training steps; `None` if they average no gradients.
        at_end: `contextlib.ExitStack`. It is closed when the call ends, with or without an error.
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
    """The active contexts of a class, the innermost first.

    Args:
        kind: Subclass of `Context`.
    """
    return [each for each in reversed(_active) if isinstance(each, kind)]


def of(model, kind=Context):
    """The innermost active context of a model; `None` if there is none.

    Args:
        model: A Keras model.
        kind: Subclass of `Context`.
    """
    return next((each for each in active(kind) if each.model is model), None)


def step():
    """The `CompiledStep` of the innermost context that has one, or `None`."""
    return next((each.step for each in reversed(_active) if each.step is not None), None)


def join():
    """The `Join` of the step that `step()` returns, or `None`."""
    innermost = step()
    return None if innermost is None else innermost.join


def require_all_ranks(what):
    """Raises an error if some ranks have no batch in the step of the active fit.

    A rank without batches joins only the gradient reductions of the other ranks, and would never
    enter another collective.

    Args:
        what: String. The collective.
    """
    active_join = join()
    if active_join is not None and active_join.state.uneven:
        raise RuntimeError(
            f"{what} needs all ranks, and some have no more batches in this epoch of model.fit(). "
            "Call it at the end of an epoch, or give all ranks the same number of batches."
        )
