"""What the launcher (mpirun, srun) told this process through its environment."""

import os

# In the order in which they are believed: an mpirun inside of a Slurm job sets its own.
_SIZE = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_LOCAL_SIZE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE")
_LOCAL_RANK = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")

# The rank's own process and what it was told, for its descendants to see.
_PROCESS = "_EASYDDL_PROCESS"


def _first_integer(names, default):
    for name in names:
        digits = os.environ.get(name, "")
        if digits.isdigit():
            return int(digits)
    return default


def size():
    """The number of ranks that were started, or `None` where no launcher tells."""
    return _first_integer(_SIZE, None)


def is_open_mpi():
    """Whether Open MPI's own mpirun started this process."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ and "PMI_SIZE" not in os.environ


def rank():
    """This process's rank, 0 where no launcher tells."""
    return _first_integer(_RANK, 0)


def local_size():
    """The number of ranks on this machine, 1 where no launcher tells."""
    return max(1, _first_integer(_LOCAL_SIZE, 1))


def local_rank():
    """This process's number among them, 0 where no launcher tells."""
    return _first_integer(_LOCAL_RANK, 0)


def is_worker():
    """Whether this process descends from a rank: a data worker, for example.

    Such a process inherits what the launcher told the rank, and must not take it for itself.
    A rank whose mpirun was called by a process that uses easyddl too, such as a notebook,
    inherits that process's mark, but was told something else.
    """
    if size() is None:
        return False
    told = f"{size()} {rank()}"
    process, _, told_to_it = os.environ.get(_PROCESS, "").partition(" ")
    if told_to_it == told:
        return process != str(os.getpid())
    os.environ[_PROCESS] = f"{os.getpid()} {told}"
    return False


def is_rank_of_several():
    """Whether a launcher started this process as one of several ranks."""
    return (size() or 1) > 1 and not is_worker()
