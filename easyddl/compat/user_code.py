"""Code that may be the user's own, which easyddl calls."""

import inspect

# What such code raises where it lacks something. Another error may come from a signal handler.
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
