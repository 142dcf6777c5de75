"""The rank and the number of ranks that the launcher (mpirun, srun) set in the environment."""

import os
import pathlib

# The first variable that is set counts: an mpirun inside a Slurm job sets its own variables too.
_SIZE = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
_RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
_LOCAL_SIZE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_TASKS_PER_NODE")
_LOCAL_RANK = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")

# Variables that identify a launch. MPICH's launcher sets none of them.
_LAUNCH = (
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PALS_APID",
)

# The names of launchers, and of the programs that they run on each machine to start its ranks. The
# kernel keeps 15 bytes of a name.
_LAUNCHERS = frozenset(
    {
        *("mpirun", "mpiexec", "mpiexec.hydra", "mpiexec.gforker"),
        *("hydra_pmi_proxy", "hydra_bstrap_pr", "pmi_proxy"),
        *("orterun", "orted", "prterun", "prun", "prted", "prte"),
        *("srun", "slurmstepd", "aprun", "palsd", "jsrun"),
    }
)

# The environment variable by which descendants of a rank recognize that they are workers. It holds
# the id of the rank's process, the launcher's variables, and the ids of the launchers.
_PROCESS = "_EASYDDL_PROCESS"


def _first_integer(names, default):
    for name in names:
        digits = os.environ.get(name, "")
        if digits.isdigit():
            return int(digits)
    return default


def size():
    """The number of ranks that the launcher started; `None` without a launcher."""
    return _first_integer(_SIZE, None)


def is_open_mpi():
    """Whether Open MPI's own mpirun started this process."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ and "PMI_SIZE" not in os.environ


def rank():
    """This process's rank; 0 without a launcher."""
    return _first_integer(_RANK, 0)


def local_size():
    """The number of ranks on this machine; 1 if no launcher set it."""
    return max(1, _first_integer(_LOCAL_SIZE, 1))


def local_rank():
    """This process's number among the ranks of its machine; 0 if no launcher set it."""
    return _first_integer(_LOCAL_RANK, 0)


def knows_local_rank():
    """Whether a launcher set this process's number among the ranks of its machine."""
    return _first_integer(_LOCAL_RANK, None) is not None


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
    if marked == variables:
        if process == str(os.getpid()):
            return False
        nearest = _launchers()[:1]
        # A process has not been launched if its ancestors have ended or cannot be seen.
        if not nearest or nearest[0] in its_launchers.split():
            return True
    os.environ[_PROCESS] = f"{os.getpid()}|{variables}|{' '.join(_launchers())}"
    return False


def _launchers():
    """The launchers among the ancestors of this process, the nearest first.

    Returns:
        List of strings: the process id and the start time, because process ids are reused.
    """
    found, process = [], os.getppid()
    while process > 0:
        try:
            text = pathlib.Path(f"/proc/{process}/stat").read_text(errors="replace")
        except OSError:
            break
        # A name may contain spaces and parentheses. proc_pid_stat(5) explains the fields.
        name, _, fields = text.partition("(")[2].rpartition(")")
        fields = fields.split()
        if name in _LAUNCHERS:
            found.append(f"{process}:{fields[19]}")
        process = int(fields[1])
    return found


def is_rank_of_several():
    """Whether a launcher started this process as one of several ranks."""
    return (size() or 1) > 1 and not is_worker()
