"""Settled errors: errors after which no collective needs to be ended.

If only one rank raises an error in a collective, the other ranks wait for it in the collective.
Therefore the collective must be ended on all ranks. An error is *settled* if this is not needed,
because all ranks raise it, or because the collective has already been ended on all ranks.
"""

import functools

_MARK = "_easyddl_is_settled"
_AFTER_THE_END = "_easyddl_is_after_the_end"


def settled(error):
    """Marks an error that all ranks raise, after they have agreed on it, and returns it."""
    vars(error)[_MARK] = True  # its class may forbid `setattr`
    return error


def is_settled(error):
    """Returns whether an error has been marked by `settled`."""
    return vars(error).get(_MARK, False)


class after_the_end:
    """A context in which a rank uses the result of a collective that has ended on all ranks.

    An error in it does not require that this collective is ended. If the collective is part of
    another one, that one must still be ended.
    """

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if error is not None:
            vars(error)[_AFTER_THE_END] = True


def take_is_after_the_end(error):
    """Returns whether an error was raised in `after_the_end`. True only at the first call."""
    return vars(error).pop(_AFTER_THE_END, False)


def giving_up(function, give_up):
    """Wraps a function so that `give_up` is called before an error leaves the function.

    Args:
        function: The function.
        give_up: Function of the exception.
    """

    # The call is on the line of its `try`, so that no exception, such as an interrupt, can be
    # raised between the two.
    # fmt: off
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        try: return function(*args, **kwargs)  # noqa: E701
        except BaseException as error:
            give_up(error)
            raise
    # fmt: on

    return wrapper


def describe(error):
    """Returns the type and the message of an error, in one line."""
    name = type(error).__name__
    try:
        text = str(error)
        return f"{name}: {text}" if text else name
    except Exception:  # the `__str__` of the user's class fails, or there is no memory
        return name


def why_given_up(error, what="A step"):
    """Returns the reason why collectives were ended on all ranks, for the errors that they raise.

    Args:
        error: The exception because of which they were ended.
        what: String. The operation in which it was raised.
    """
    try:
        return f"{what} was given up by a {describe(error)}"
    except MemoryError:
        return what
