"""Checks of the arguments that users pass."""

import numbers


def is_integer(value):
    """Whether a value is an integer, of Python's or NumPy's, and no boolean."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value):
    """Whether a value is a real number, of Python's or NumPy's, and no boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def positive_integer(name, value, otherwise=""):
    """The value of an argument that must be a positive integer.

    Args:
        name: String. The argument.
        value: What the user passed.
        otherwise: String. What else may be passed, for the error: it begins with a comma.

    Raises:
        ValueError: If it is none.
    """
    if not is_integer(value) or value < 1:
        raise ValueError(
            f"`{name}` must be a positive integer{otherwise}. Received: {name}={value!r}"
        )
    return value
