"""The rank and the number of ranks that the launcher (mpirun, srun) set in the environment."""

import os

from easyddl.runtime import launchers, processes

_LAUNCH = tuple(name for launcher in launchers.LAUNCHERS for name in launcher.launch)

_PROGRAMS = frozenset(
    name for launcher in launchers.LAUNCHERS for name in (*launcher.commands, *launcher.agents)
)

# The environment variable by which descendants of a rank recognize that they are workers. It holds
# the id of the rank's process, the launcher's variables, and the ids of the launchers.
_PROCESS = "_EASYDDL_PROCESS"

# The environment variable that holds the id of the process by which `easyddl run` supervises a
# rank.
SUPERVISOR = "_EASYDDL_SUPERVISOR"


def size():
    """The number of ranks that the launcher started; `None` without a launcher."""
    return launchers.first_integer("size")


def is_open_mpi():
    """Whether Open MPI's own mpirun started this process."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ and "PMI_SIZE" not in os.environ


def rank():
    """This process's rank; 0 without a launcher."""
    return launchers.first_integer("rank") or 0


def local_size():
    """The number of ranks on this machine; 1 if no launcher set it."""
    return max(1, launchers.first_integer("local_size") or 1)


def local_rank():
    """This process's number among the ranks of its machine; 0 if no launcher set it."""
    return launchers.first_integer("local_rank") or 0


def knows_local_rank():
    """Whether a launcher set this process's number among the ranks of its machine."""
    return launchers.first_integer("local_rank") is not None


def is_worker():
    """Whether this process is a descendant of a rank, such as a data worker, and not a rank itself.

    A worker inherits the launcher's variables from the rank, and must not use them as its own.

    A rank can also inherit the mark of another process that uses easyddl: the process that called
    its mpirun, such as a notebook or a rank of another job. Such a rank is not a worker. Its
    launcher's variables differ from those in the mark; if both jobs have the same size, its
    launcher differs.
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
    # A process has not been launched if its ancestors have ended or cannot be seen.
    if is_marked and (not found or found[0] in its_launchers.split()):
        return True
    os.environ[_PROCESS] = f"{os.getpid()}|{variables}|{' '.join(found)}"
    return False


def _launchers():
    """The launchers among the ancestors of this process, the nearest first.

    Returns:
        List of strings: the process id and the start time, because process ids are reused.
    """
    found = (each for each in processes.ancestors() if each.name in _PROGRAMS)
    return [f"{each.id}:{each.start}" for each in found]


def is_supervised():
    """Whether `easyddl run` started this rank, and so learns how it ends.

    A rank that another launcher starts within such a job inherits the variable. That launcher is
    then nearer among its ancestors than the supervisor.
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


def is_rank_of_several():
    """Whether a launcher started this process as one of several ranks."""
    return (size() or 1) > 1 and not is_worker()
