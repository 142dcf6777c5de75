"""The rank and the number of ranks that the launcher (mpirun, srun) set in the environment."""

import contextlib
import os
import select
import socket

from easyddl.hosts import launchers
from easyddl.machine import processes

_LAUNCH = tuple(name for launcher in launchers.LAUNCHERS for name in launcher.launch)

_PROGRAMS = frozenset(
    name for launcher in launchers.LAUNCHERS for name in (*launcher.commands, *launcher.agents)
)

# The environment variable from which a descendant of a rank learns that it is a worker. It contains
# the id of the rank's process, the launcher's variables, and the ids of the launchers.
_PROCESS = "_EASYDDL_PROCESS"

# The environment variable with the id of the process in which `easyddl run` supervises a rank.
SUPERVISOR = "_EASYDDL_SUPERVISOR"

# The environment variable with the address by which the supervisor has reached `easyddl run`.
RUN_ADDRESS = "_EASYDDL_RUN_ADDRESS"

# The environment variable with the name of the socket at which the supervisor takes events, set by
# `easyddl run --restarts`.
EVENTS = "_EASYDDL_EVENTS"


def size():
    """Returns the number of ranks that the launcher started; `None` without a launcher."""
    return launchers.first_integer("size")


def is_open_mpi():
    """Returns whether Open MPI's own mpirun started this process."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ and "PMI_SIZE" not in os.environ


def rank():
    """Returns this process's rank; 0 without a launcher."""
    return launchers.first_integer("rank") or 0


def local_size():
    """Returns the number of ranks on this host; 1 if no launcher set it."""
    return max(1, launchers.first_integer("local_size") or 1)


def local_rank():
    """Returns this process's number among the ranks of its host; 0 if no launcher set it."""
    return launchers.first_integer("local_rank") or 0


def knows_local_rank():
    """Returns whether a launcher set this process's number among the ranks of its host."""
    return launchers.first_integer("local_rank") is not None


def is_worker():
    """Returns whether this process is a worker: a descendant of a rank, such as a data worker.

    A worker inherits the launcher's variables from the rank, but must not act as that rank.

    A rank can also inherit the mark `_PROCESS` of another process that uses easyddl: the process
    that called its mpirun, such as a notebook or a rank of another job. Then it is not a worker.
    Its launcher's variables differ from those in the mark. If they are equal, because both jobs
    have the same size, its launcher differs.
    """
    if size() is None:
        return False
    launch = (os.environ.get(name, "") for name in _LAUNCH)
    variables = " ".join([str(size()), str(rank()), *launch])
    process, marked, its_launchers = (os.environ.get(_PROCESS, "") + "||").split("|")[:3]
    is_marked = marked == variables
    if is_marked and process == str(os.getpid()):
        return False
    found = _launchers()
    # If the launchers are not visible, because they have ended or run in another container, trust
    # the mark.
    if is_marked and (not found or found[0] in its_launchers.split()):
        return True
    os.environ[_PROCESS] = f"{os.getpid()}|{variables}|{' '.join(found)}"
    return False


def _launchers():
    """Returns the launchers among the ancestors of this process, the nearest first.

    Returns:
        List of strings. Each contains the process id, and the start time, because process ids are
        reused.
    """
    return [f"{each.id}:{each.start}" for each in _launcher_processes()]


def _launcher_processes():
    return (each for each in processes.ancestors() if each.name in _PROGRAMS)


def is_started_by_launcher():
    """Returns whether a launcher has started this process itself, and no shell script.

    A shell script may start another program as the same rank.
    """
    parent = next(processes.ancestors(), None)
    return parent is not None and (
        parent.name in _PROGRAMS or str(parent.id) == os.environ.get(SUPERVISOR)
    )


def nearest():
    """Identifies the launcher's process that started this rank and others of its host.

    Returns:
        String that is unique among all processes since this host booted; `None` if the process is
        unknown.
    """
    return next(iter(_launchers()), None)


def siblings():
    """Returns how to recognize the ranks that an MPI's launcher has started on this host.

    Returns:
        Dictionary with arguments of `_core.StartupMonitor`; empty if their launcher is unknown.
    """
    launcher = launchers.of_rank()
    parent = next(_launcher_processes(), None)
    if launcher is None or not launcher.is_mpirun or parent is None:
        return {}
    count = os.environ.get(launcher.local_size, "")
    if parent.name not in (*launcher.commands, *launcher.agents) or not count.isdigit():
        return {}
    return {
        "agent": parent.id,
        "local_size": int(count),
        "local_rank": launcher.local_rank,
        "launchers": sorted(_PROGRAMS),
    }


def is_served_no_more():
    """Returns whether MPICH's launcher has closed the connection by which it serves this rank.

    It does so when the rank finalizes MPI.
    """
    descriptor = os.environ.get("PMI_FD", "")
    if not descriptor.isdigit():
        return False
    poll = select.poll()
    poll.register(int(descriptor), 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def is_supervised():
    """Returns whether `easyddl run` started this rank, and therefore learns how it ends.

    If another launcher starts ranks within such a job, they inherit the variable. In this case the
    other launcher is a nearer ancestor than the supervisor.
    """
    supervisor = os.environ.get(SUPERVISOR)
    if supervisor is None:
        return False
    for ancestor in processes.ancestors():
        if str(ancestor.id) == supervisor:
            return True
        if ancestor.name in _PROGRAMS:
            return False
    return False


def may_exit():
    """Returns whether the job ends if this rank exits with an error before it initializes MPI.

    MPICH's launcher waits forever then, unless a signal ends the rank. Schedulers take the status
    of SIGTERM for a preemption, so other launchers get another status.
    """
    return is_supervised() or is_open_mpi()


def tell_supervisor(event):
    """Tells `easyddl run --restarts` what this rank has just done; nothing without it.

    Args:
        event: String. `backup`, or the part of a start that has ended: see `restarts`.
    """
    name = os.environ.get(EVENTS)
    if name and is_supervised():
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # the supervisor has ended
                sock.sendto(event.encode(), f"\0{name}")


def is_rank_of_several():
    """Returns whether a launcher started this process as one of several ranks."""
    return (size() or 1) > 1 and not is_worker()
