"""Code that may be the user's own, which easyddl calls."""

import contextlib
import inspect
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

# The packages whose wrappers of Keras's functions are not the user's.
_WRAPPERS = ("keras", "easyddl", "jax", "tensorflow", "torch")


def is_of_keras(thing):
    """Returns whether a class or a function is Keras's own, and no subclass or override of it.

    A wrapper of easyddl or of a framework changes nothing about it, one of the user's does.
    """
    module = getattr(thing, "__globals__", {}).get("__name__", thing.__module__).partition(".")[0]
    inner = getattr(thing, "__wrapped__", None)  # `functools.wraps` copies its `__module__`
    return module == "keras" if inner is None else module in _WRAPPERS and is_of_keras(inner)


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
    """Returns whether a signal handler has raised an error, not the code that it interrupted.

    Python passes a handler the frame that it interrupts, which is then the caller of the handler.
    """
    return any(_received_caller(frame) for frame, _ in traceback.walk_tb(error.__traceback__))


def _received_caller(frame):
    code = frame.f_code
    count = code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        values = value if isinstance(value, tuple) else (value,)  # of `*arguments`
        if any(each is not None and each is frame.f_back for each in values):
            return True
    return False
