"""What the launcher (mpirun, srun) told this process through its environment."""

import os
import pathlib

# In the order in which they are believed: an mpirun inside of a Slurm job sets its own.
_SIZE = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_LOCAL_SIZE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE")
_LOCAL_RANK = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")

# What tells one launch from another where a launcher gives it a name. MPICH's does not.
_LAUNCH = (
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PALS_APID",
)

# Launchers, and what they start on each machine to start the ranks there: their names as the
# kernel keeps them, which is up to 15 bytes.
_LAUNCHERS = frozenset(
    {
        *("mpirun", "mpiexec", "mpiexec.hydra", "mpiexec.gforker"),
        *("hydra_pmi_proxy", "hydra_bstrap_pr", "pmi_proxy"),
        *("orterun", "orted", "prterun", "prun", "prted", "prte"),
        *("srun", "slurmstepd", "aprun", "palsd", "jsrun"),
    }
)

# The rank's own process, what it was told, and its launchers' processes, for its descendants to
# see.
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


def knows_local_rank():
    """Whether a launcher tells this process's number among those of its machine."""
    return _first_integer(_LOCAL_RANK, None) is not None


def is_worker():
    """Whether this process descends from a rank: a data worker, for example.

    Such a process inherits what the launcher told the rank, and must not take it for itself.
    A rank whose mpirun was called by a process that uses easyddl too, such as a notebook or a
    rank of another job, inherits that process's mark. But it was told something else, or, where
    both jobs are of the same size, another launcher has started it.
    """
    if size() is None:
        return False
    launch = (os.environ.get(name, "") for name in _LAUNCH)
    told = " ".join([str(size()), str(rank()), *launch])
    process, told_to_it, its_launchers = (os.environ.get(_PROCESS, "") + "||").split("|")[:3]
    if told_to_it == told:
        if process == str(os.getpid()):
            return False
        nearest = _launchers()[:1]
        # A process whose ancestors cannot be seen, or have ended, has not been launched.
        if not nearest or nearest[0] in its_launchers.split():
            return True
    os.environ[_PROCESS] = f"{os.getpid()}|{told}|{' '.join(_launchers())}"
    return False


def _launchers():
    """The launchers' processes among this one's ancestors, the nearest first.

    Each with the time at which it began, since process ids are used again.
    """
    found, process = [], os.getppid()
    while process > 0:
        try:
            text = pathlib.Path(f"/proc/{process}/stat").read_text(errors="replace")
        except OSError:
            break
        # A name may hold spaces and parentheses. See proc_pid_stat(5) for the fields.
        name, _, fields = text.partition("(")[2].rpartition(")")
        fields = fields.split()
        if name in _LAUNCHERS:
            found.append(f"{process}:{fields[19]}")
        process = int(fields[1])
    return found


def is_rank_of_several():
    """Whether a launcher started this process as one of several ranks."""
    return (size() or 1) > 1 and not is_worker()
