"""Messages to the person at the terminal."""

import os
import stat
import sys

from easyddl.runtime import launchers, processes

_COMMANDS = tuple(name for launcher in launchers.LAUNCHERS for name in launcher.commands)


_declared = False


def declare_watched(watched):
    """Tells whether a person watches standard error, where this process cannot know it.

    Args:
        watched: Boolean.
    """
    global _declared
    _declared = watched


def say(message):
    """Prints a line to standard error. The caller chooses the ranks that print."""
    print(f"easyddl: {message}", file=sys.stderr, flush=True)


def is_watched():
    """Whether a person watches this process's standard error.

    This is true if standard error is a terminal, or a pipe to a launcher on this host whose own
    standard error is a terminal. MPICH's mpirun gives pipes to its ranks. It is also true if
    `declare_watched` says so.
    """
    try:
        if _declared or sys.stderr.isatty():
            return True
        is_pipe = stat.S_ISFIFO(os.fstat(sys.stderr.fileno()).st_mode)
        return is_pipe and _is_terminal_of_launcher()
    except (AttributeError, OSError, ValueError):  # there is no standard error, or it is not a file
        return False


def _is_terminal_of_launcher():
    """Whether the nearest launcher that is an ancestor writes its standard error to a terminal."""
    found = (each.id for each in processes.ancestors() if each.name in _COMMANDS)
    launcher = next(found, None)
    if launcher is None:
        return False
    return os.readlink(f"/proc/{launcher}/fd/2").startswith(("/dev/pts/", "/dev/tty"))
