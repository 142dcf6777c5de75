"""The active scopes of this rank: calls of `fit` and `evaluate`, and parts of these calls."""

import contextlib
import sys
import threading
from typing import Any

from easyddl.compat import patches
from easyddl.runtime import settled_errors, world
from easyddl.steps.batch_weight import UNWEIGHTED
from easyddl.steps.join import Join

_active: list["Scope"] = []  # the innermost last


class Scope:
    """A context manager that is active on this rank while it is entered.

    Scopes nest: a fit validates, and a callback may train another model.

    Attributes:
        called: String. What the user called, for messages.
        thread: Integer. The thread that entered the scope.
    """

    called = ""
    thread = 0

    def __enter__(self):
        self.thread = threading.get_ident()
        _active.append(self)
        return self

    def __exit__(self, *error):
        if self in _active:  # not a `Call` after `forget_calls`
            _active.remove(self)

    def note(self):
        """Records what the end of the job should warn of."""


class Call(Scope):
    """A call of the user outside of `fit`, which contains collectives that the user did not call.

    Args:
        called: String. The call, for messages. All ranks must be in it.
    """

    def __init__(self, called):
        self.called = called


def forget_calls():
    """Ends all `Call`s, after an error that may have interrupted the end of one."""
    _active[:] = [each for each in _active if not isinstance(each, Call)]


class Context(Scope):
    """One call of `fit` or `evaluate`, with the changes that its end must undo.

    Attributes:
        model: The Keras model.
        step: The `CompiledStep` of the training, with the `join` of its reducers and the `weight`
            of its batches; `None` if it averages no gradients.
        exchange: The `FitExchange` of the call; `None` if it uses that of an outer call, or
            exchanges nothing.
        at_end: `contextlib.ExitStack`. It is closed when the call ends, with or without an error.
    """

    def __init__(self, model):
        self.model = model
        self.step: Any = None
        self.exchange: Any = None
        self.at_end = contextlib.ExitStack()

    def __exit__(self, kind, error, traceback):
        try:
            if error is not None:
                self.at_end.callback(self._give_up, error)  # first; if it fails, the others follow
            return self.at_end.__exit__(kind, error, traceback)
        except BaseException as late:
            self._give_up(late)
            raise
        finally:
            super().__exit__(kind, error, traceback)

    def ensure_left(self):
        """Leaves the context if it still is active. Call it in a `finally` around the `with`.

        A signal handler may raise an error as `__enter__` ends, or as `__exit__` begins.
        """
        if self in _active:
            self.__exit__(*sys.exc_info())
        if threading.get_ident() not in [each.thread for each in _active]:
            patches.undo_left()

    def _give_up(self, error):
        """Ends the call on the other ranks, which may wait in it for this one."""
        if self.exchange is None:
            return
        # The script may catch a SystemExit. Other ranks learn of it when the script ends.
        if isinstance(error, SystemExit):
            settled_errors.postpone(self._end_exchange, error)
            return
        if not self.exchange.own.failure:  # otherwise no step in progress can end
            self.let_steps_end()
        self._end_exchange(error)

    def _end_exchange(self, error):
        self.exchange.own.give_up(settled_errors.why_given_up(error, self.called))

    def let_steps_end(self):
        """Waits for a short time for steps in progress, for which other ranks may only be late."""


def active(kind=Context):
    """Returns the active scopes of a class, the innermost first.

    Args:
        kind: Subclass of `Scope`.
    """
    return [each for each in reversed(_active) if isinstance(each, kind)]


def called():
    """Returns the outermost active call of this thread, such as "model.fit()"; empty without one.

    Inner calls, which a callback may make, are not returned, because some ranks may not make them.
    """
    thread = threading.get_ident()
    return next((each.called for each in _active if each.called and each.thread == thread), "")


def of(model, kind=Context):
    """Returns the innermost active context of a model; `None` if there is none.

    Args:
        model: A Keras model.
        kind: Subclass of `Context`.
    """
    return next((each for each in active(kind) if each.model is model), None)


def step():
    """Returns the step of the innermost context that has one, or `None`."""
    return next((each.step for each in active() if each.step is not None), None)


def running_step():
    """Returns the step that `step()` returns if it is being traced or run; otherwise `None`."""
    innermost = step()
    return innermost if innermost is not None and innermost.join.is_in_step else None


def exchange():
    """Returns the `FitExchange` of the innermost context that has one, or `None`."""
    return next((each.exchange for each in active() if each.exchange is not None), None)


def batch_weight():
    """Returns the weight of the batch in the current step of the innermost fit.

    Returns:
        Scalar float32 tensor; `None` if no loss has set a weight, or all ranks have equal weights.
    """
    innermost = step()
    weight = None if innermost is None else innermost.weight.current()
    return None if weight is UNWEIGHTED else weight


def join() -> Join | None:
    """Returns the `Join` of the step that `step()` returns, or `None`."""
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
        raise settled_errors.settled(
            RuntimeError(
                f"{what} needs all ranks, but some ranks have no more batches in this epoch of "
                "model.fit(). Call it at the end of an epoch, or give all ranks the same number "
                "of batches."
            )
        )


def note():
    """Calls `note` of all active scopes."""
    for scope in active(Scope):
        scope.note()


world.set_guard(world.Guard(called, require_all_ranks, forget_calls, exchange, note))
