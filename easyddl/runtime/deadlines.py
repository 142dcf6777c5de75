"""The deadlines of waits, which the user can set by environment variables."""

import math
import os

WARN, ABORT = 60.0, 600.0  # the defaults, in seconds


def earlier(seconds):
    """Returns the deadline of an inner step, which must report its error before the outer deadline.

    Args:
        seconds: Number. The outer deadline.

    Returns:
        Float, in seconds. It is a fifth shorter, but at most 5 seconds shorter.
    """
    return seconds - min(5.0, seconds / 5)


def warn_and_abort():
    """Returns both deadlines, or their defaults if a variable has a wrong value.

    After a wrong value the start uses the defaults until all ranks can raise the error.

    Returns:
        Pair: a pair of deadlines in seconds, for the warning and for the end of the job; and the
        `ValueError` for a wrong value, or `None`.
    """
    try:
        return (_seconds("EASYDDL_STALL_WARN", WARN), _seconds("EASYDDL_STALL_ABORT", ABORT)), None
    except ValueError as error:
        return (WARN, ABORT), error


def _seconds(name, default):
    text = os.environ.get(name, "").strip()
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name} must be a number of seconds, or 0 for never. Received: {text!r}")
    return seconds
