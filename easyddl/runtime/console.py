"""What easyddl says to the person at the terminal."""

import os
import pathlib
import stat
import sys

_LAUNCHERS = ("mpirun", "mpiexec", "prterun", "orterun", "srun")


def say(message):
    """Prints a line to standard error; the caller decides on which rank."""
    print(f"easyddl: {message}", file=sys.stderr, flush=True)


def is_watched():
    """Whether a person sees this process's standard error as it is written.

    It is a terminal then, or a pipe to a launcher on this host whose own is a terminal: MPICH's
    mpirun gives its ranks pipes only.
    """
    try:
        if sys.stderr.isatty():
            return True
        is_pipe = stat.S_ISFIFO(os.fstat(sys.stderr.fileno()).st_mode)
        return is_pipe and _is_terminal_of(_launcher())
    except (AttributeError, OSError, ValueError):  # no standard error, or one that is no file
        return False


def _launcher():
    """The process, above this one, that started the ranks; `None` if there is none here."""
    process = os.getppid()
    while process > 1:
        stated = pathlib.Path(f"/proc/{process}/stat").read_text()
        name, rest = stated[stated.index("(") + 1 :].rsplit(") ", 1)
        if name.startswith(_LAUNCHERS):
            return process
        process = int(rest.split()[1])
    return None


def _is_terminal_of(process):
    return process is not None and os.readlink(f"/proc/{process}/fd/2").startswith(
        ("/dev/pts/", "/dev/tty")
    )
