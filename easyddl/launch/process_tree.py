"""The processes that a process has started, with those that these have started."""

import contextlib
import ctypes
import os
import pathlib
import signal

from easyddl.runtime import processes

_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent(parent):
    """Makes the kernel kill this process when its parent ends. For a new process to call.

    Args:
        parent: Integer. The id of the process that made this one.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def descendants(process):
    """The ids of all processes below a process.

    Args:
        process: Integer. Its id.
    """
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                found = processes.read(int(entry.name))
                children.setdefault(found.parent, []).append(found.id)
    found, left = [], [process]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def kill_with_descendants(process):
    """Kills a process that has not been waited for, and all processes below it.

    The ssh of a launcher is in a process group of its own, and outlives the launcher if its host
    does not answer.
    """
    for pid in [process, *descendants(process)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
