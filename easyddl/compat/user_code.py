"""Whether code is Keras's own, or the user's."""

import inspect


def is_of_keras(thing):
    """Returns whether a class or a function is Keras's own, and no subclass or override of it."""
    return inspect.unwrap(thing).__module__.partition(".")[0] == "keras"
