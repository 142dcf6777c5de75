"""Deadlines of waits, from the environment variables of the user."""

import math
import os

WARN, ABORT = 60.0, 600.0  # the defaults, in seconds


def warn() -> float:
    """The seconds after which a waiting rank prints a warning; 0 for never.

    Raises:
        ValueError: If EASYDDL_STALL_WARN is not a number of seconds.
    """
    return _seconds("EASYDDL_STALL_WARN", WARN)


def warn_and_abort():
    """Both deadlines, or their defaults if a variable has a wrong value.

    The start uses the defaults until the ranks can tell each other about the wrong value.

    Returns:
        Pair. The first is the pair of deadlines in seconds: for the warning, and for the end of
        the job. The second is the `ValueError` for the wrong value, or `None`.
    """
    try:
        return (warn(), _seconds("EASYDDL_STALL_ABORT", ABORT)), None
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
