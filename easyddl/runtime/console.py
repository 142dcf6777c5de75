"""Messages to the person at the terminal."""

import os
import pathlib
import stat
import sys

_LAUNCHERS = ("mpirun", "mpiexec", "prterun", "orterun", "srun")


def say(message):
    """Prints a line to standard error. The caller chooses the ranks that print."""
    print(f"easyddl: {message}", file=sys.stderr, flush=True)


def is_watched():
    """Whether a person watches this process's standard error.

    This is true if standard error is a terminal, or a pipe to a launcher on this host whose own
    standard error is a terminal. MPICH's mpirun gives pipes to its ranks.
    """
    try:
        if sys.stderr.isatty():
            return True
        is_pipe = stat.S_ISFIFO(os.fstat(sys.stderr.fileno()).st_mode)
        return is_pipe and _is_terminal_of(_launcher())
    except (AttributeError, OSError, ValueError):  # there is no standard error, or it is not a file
        return False


def _launcher():
    """The id of the launcher that is an ancestor of this process; `None` if there is none."""
    process = os.getppid()
    while process > 1:
        status = pathlib.Path(f"/proc/{process}/stat").read_text()
        name, rest = status[status.index("(") + 1 :].rsplit(") ", 1)
        if name.startswith(_LAUNCHERS):
            return process
        process = int(rest.split()[1])
    return None


def _is_terminal_of(process):
    return process is not None and os.readlink(f"/proc/{process}/fd/2").startswith(
        ("/dev/pts/", "/dev/tty")
    )
