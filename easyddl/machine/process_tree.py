"""The descendants of a process: the processes that it started, directly or indirectly."""

import contextlib
import ctypes
import os
import pathlib
import signal

from easyddl.machine import processes

_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent(parent):
    """Makes the kernel kill this process when its parent ends. Call it in a new process.

    Args:
        parent: Integer. The id of the process that started this one.
    """
    signal_at_end_of_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def signal_at_end_of_parent(number):
    """Makes the kernel send this process a signal when the thread that started it ends.

    Args:
        number: Integer. The number of the signal.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))


def descendants(process):
    """Returns the ids of all descendants of a process.

    Args:
        process: Integer. The id of the process. All processes descend from 0, which is none.
    """
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # the process has ended
                found = processes.read(int(entry.name))
                children.setdefault(found.parent, []).append(found.id)
    found, left = [], [process]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def kill_with_descendants(process):
    """Kills a process that has not been waited for, and all of its descendants.

    Killing the process group is not enough: the ssh of a launcher is in another process group, and
    outlives the launcher if its host does not answer.
    """
    for pid in [process, *descendants(process)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
