"""Code that may be the user's own, which easyddl calls."""

import contextlib
import functools
import inspect
import signal
import traceback

# What such code raises where it lacks something.
ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)


def is_of_keras(thing):
    """Returns whether a class or a function is Keras's own, and no subclass or override of it."""
    return inspect.unwrap(thing).__module__.partition(".")[0] == "keras"


@contextlib.contextmanager
def suppress(*more):
    """Returns a context that suppresses `ERRORS`, unless a signal handler has raised them.

    Args:
        *more: Types of other errors that are suppressed, too.
    """
    try:
        yield
    except (*ERRORS, *more) as error:
        if is_of_handler(error):
            raise


def is_of_handler(error):
    """Returns whether a signal handler has raised an error, not the code that it interrupted."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler):
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not inspect.isroutine(handler):
        handler = type(handler).__call__
    return getattr(inspect.unwrap(handler), "__code__", None)
