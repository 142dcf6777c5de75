"""Checks of users' arguments."""

import numbers


def is_integer(value):
    """Returns whether a value is an integer of Python or NumPy, but not a boolean."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def is_number(value):
    """Returns whether a value is a real number of Python or NumPy, but not a boolean."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def positive_integer(name, value, otherwise=""):
    """Returns the value of an argument if it is a positive integer.

    Args:
        name: String. The name of the argument.
        value: The value that the user passed.
        otherwise: String. The other values that the argument may have, for the error message. It
            begins with a comma.

    Raises:
        ValueError: If the value is not a positive integer.
    """
    if not is_integer(value) or value < 1:
        raise ValueError(
            f"`{name}` must be a positive integer{otherwise}. Received: {name}={value!r}"
        )
    return value


def one_of(name, value, choices, otherwise=None):
    """Returns the value of an argument if it is one of several values.

    Args:
        name: String. The name of the argument.
        value: The value that the user passed.
        choices: Tuple of the values that the argument may have.
        otherwise: String, for the error message. If it is given, the argument may also be `None`,
            and it says what for.

    Raises:
        ValueError: If the value is not one of them.
    """
    if value not in choices and (value is not None or otherwise is None):
        also = "" if otherwise is None else f", or None{otherwise}"
        raise ValueError(f"`{name}` must be one of {choices}{also}. Received: {name}={value!r}")
    return value


def instance_of_keras_3(name, value, cls, example):
    """Raises a `TypeError` unless an argument is an instance of a class of Keras 3.

    Args:
        name: String. The name of the argument.
        value: The value that the user passed.
        cls: The class.
        example: String. A call that returns an instance.
    """
    if not isinstance(value, cls):
        raise TypeError(
            f"`{name}` must be an instance of a Keras 3 {cls.__name__.lower()}, such as "
            f"`{example}`. Keras 2 is not supported: import keras, not tf_keras, and do not set "
            f"TF_USE_LEGACY_KERAS. Received: {value!r}"
        )
