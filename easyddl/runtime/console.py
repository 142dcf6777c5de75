"""Messages to the user at the terminal."""

import contextlib
import os
import stat
import sys

from easyddl.hosts import launchers
from easyddl.machine import processes

MOST_SHOWN = 5  # of several texts in a message

_COMMANDS = tuple(name for launcher in launchers.LAUNCHERS for name in launcher.commands)

_declared = False


def declare_watched(watched):
    """Sets whether a person watches standard error, if this process cannot find it out.

    Args:
        watched: Boolean.
    """
    global _declared
    _declared = watched


def say(message):
    """Prints a line to standard error on every rank that calls it.

    A job does not fail because standard error is closed, or is a pipe that nobody reads any more.
    """
    with contextlib.suppress(OSError, ValueError):
        print(f"easyddl: {message}", file=sys.stderr, flush=True)


def is_watched():
    """Returns whether a person watches this process's standard error.

    This is true if standard error is a terminal, or a pipe to a launcher on this host whose own
    standard error is a terminal. It is also true after `declare_watched(True)`.
    """
    try:
        if _declared or sys.stderr.isatty():
            return True
        is_pipe = stat.S_ISFIFO(os.fstat(sys.stderr.fileno()).st_mode)
        return is_pipe and _is_terminal_of_launcher()
    except (AttributeError, OSError, ValueError):  # there is no standard error, or it is not a file
        return False


def _is_terminal_of_launcher():
    """Returns whether the standard error of the nearest ancestor launcher is a terminal."""
    found = (each.id for each in processes.ancestors() if each.name in _COMMANDS)
    launcher = next(found, None)
    if launcher is None:
        return False
    return os.readlink(f"/proc/{launcher}/fd/2").startswith(("/dev/pts/", "/dev/tty"))


def ranks(numbers):
    """Returns text such as `"rank 1"` or `"ranks 0, 2"`, for messages.

    Args:
        numbers: List of integers, at least one.
    """
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def sentence(text):
    """Ends a text by a full stop, unless it ends a sentence already.

    Args:
        text: String, such as the message of an error.
    """
    return text if text.endswith((".", "?", "!")) else f"{text}."


def first(texts, separator=", "):
    """Returns the first of several texts, and how many more there are.

    Args:
        texts: List of strings.
        separator: String, between two texts.
    """
    more = len(texts) - MOST_SHOWN
    end = f"{separator.removesuffix('and ')}and {more} more" if more > 0 else ""
    return separator.join(texts[:MOST_SHOWN]) + end


def by_rank(values):
    """Returns text such as `"0.9 on ranks 0, 2; 0.5 on rank 1"`, for messages.

    Args:
        values: Iterable of a hashable value of each rank.
    """
    numbers = {}
    for rank, value in enumerate(values):
        numbers.setdefault(value, []).append(rank)
    return "; ".join(f"{value} on {ranks(those)}" for value, those in numbers.items())
