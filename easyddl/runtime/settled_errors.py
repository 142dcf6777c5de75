"""Settled errors: errors after which no collective needs to be ended.

If only one rank raises an error in a collective, the other ranks wait for it in the collective.
Therefore the collective must be ended on all ranks. An error is *settled* if this is not needed,
because all ranks raise it, or because the collective has already been ended on all ranks.
"""

import functools

_MARK = "_easyddl_settled_in"

_latest = 0  # the number of the function that `call` entered last
_pending = None  # a pending `give_up`, which must run before the next collective
_pending_error = None  # its error


def settled(error):
    """Marks an error that all ranks raise, after they have agreed on it, and returns it.

    The mark holds for the functions that `call` runs now. Somebody may raise the same object later,
    on one rank alone.
    """
    vars(error)[_MARK] = _latest  # its class may forbid `setattr`
    return error


def is_settled(error):
    """Returns whether an error has been marked by `settled`."""
    return _MARK in vars(error)


def postpone(give_up, error):
    """Calls `give_up` with an error before the next function that `call` runs, if there is one.

    Args:
        give_up: Function of the exception.
        error: The exception.
    """
    global _pending, _pending_error
    _pending_error = error
    _pending = give_up


def call(function, give_up, *args, **kwargs):
    """Calls a function, and `give_up` before an error leaves it.

    If `give_up` raises an error, such as a lack of memory, it is called again before the next
    function. Until then the other ranks wait.

    Args:
        function: The function.
        give_up: Function of the exception. The exception is marked as settled only if this has
            happened within `function`.
        *args: Passed to the function.
        **kwargs: Passed to the function.
    """
    global _latest, _pending, _pending_error
    if _pending is not None:
        _pending(_pending_error)
        postpone(None, None)
    _latest += 1
    number = _latest
    # Each call is on the line of its `try`, so that no exception, such as an interrupt, can be
    # raised between the two. An assignment to a variable that exists needs no memory.
    # fmt: off
    try: return function(*args, **kwargs)  # noqa: E701
    except BaseException as error:
        try: _give_up(give_up, error, number)  # noqa: E701
        except BaseException:
            _pending_error = error
            _pending = give_up
            raise
        raise
    # fmt: on


def _give_up(give_up, error, number):
    if vars(error).get(_MARK, number) < number:
        del vars(error)[_MARK]
    give_up(error)


def giving_up(function, give_up):
    """Wraps a function so that `give_up` is called before an error leaves it: see `call`."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return call(function, give_up, *args, **kwargs)

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
        kind, colon, text = describe(error).partition(": ")
        return f"{what} was given up by {kind}{colon}{_cause(text)}"
    except MemoryError:
        return what


def _cause(text):
    """Returns the line of an error's message that says what is wrong.

    TensorFlow's messages begin with "Graph execution error:" and the places in the script.
    """
    lines = text.splitlines() or [""]
    if lines[0] != "Graph execution error:":
        return lines[0]
    found = (
        line for line in lines if line[:1] not in ("", " ", "\t", "<") and not line.endswith(":")
    )
    return next(found, lines[0])
