"""The launchers and schedulers that easyddl knows: what each one tells by environment variables.

A launcher (mpirun, srun) tells a rank its number. A scheduler tells which hosts a job may use. Many
programs are both, so they share one table. The variables are those of the programs' manuals:
Hydra's `MPI_LOCALRANKID`, Open MPI's `OMPI_COMM_WORLD_*`, PALS' pals(7), jsrun's
`JSM_NAMESPACE_*`, flux-environment(7), srun(1), PBS' qsub(1) and LSF's "Environment variables".
"""

import dataclasses
import os
from collections.abc import Callable, Mapping

from easyddl.runtime import hostfile, hosts


@dataclasses.dataclass(frozen=True)
class Launcher:
    """A launcher or scheduler. A field that it has no variable for is empty.

    Attributes:
        name: String, for messages.
        size: Name of the variable that holds the number of ranks.
        rank: Name of the variable that holds this process's rank.
        local_size: Name of the variable that holds the number of ranks on this host.
        local_rank: Name of the variable that holds the number among the ranks of this host.
        launch: Names of variables that differ from one launch to the next.
        commands: Names of the programs that a user starts, as the kernel keeps them (15 bytes).
        agents: Names of the programs that these run on each host.
        is_mpirun: Boolean. Whether it is the mpirun of an MPI, whose agents belong to one job.
        read_hosts: Function of the environment. Returns the `HostSlots` that a job may use,
            or `None` if the variables are not set.
    """

    name: str
    size: str = ""
    rank: str = ""
    local_size: str = ""
    local_rank: str = ""
    launch: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    is_mpirun: bool = False
    read_hosts: Callable[[Mapping[str, str]], list[hosts.HostSlots] | None] = lambda environment: (
        None
    )


def _slurm_hosts(environment):
    """Reads the nodes of a Slurm allocation, with the tasks on each, else its processors."""
    text = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if not text or not environment.get("SLURM_JOB_ID"):
        return None
    names = hosts.expand_names(text)
    counts = hosts.expand_counts(environment.get("SLURM_TASKS_PER_NODE", ""))
    if len(counts) != len(names):
        return [hosts.HostSlots(name) for name in names]
    return [hosts.HostSlots(*pair) for pair in zip(names, counts, strict=True)]


def _pbs_hosts(environment):
    """Reads PBS' node file, which has a line for each slot."""
    path = environment.get("PBS_NODEFILE")
    return hosts.merged(_names_in(path, "PBS_NODEFILE")) if path else None


def _lsf_hosts(environment):
    """Reads LSF's list of hosts, such as `h1 4 h2 4`, whose first may be a host without slots."""
    words = environment.get("LSB_MCPU_HOSTS", "").split()
    if not words:
        path = environment.get("LSB_DJOB_HOSTFILE")
        return hosts.merged(_names_in(path, "LSB_DJOB_HOSTFILE")) if path else None
    if len(words) % 2 or not all(slots.isdigit() for slots in words[1::2]):
        raise ValueError(
            "LSB_MCPU_HOSTS must be a list of hosts and slots, as in `h1 4 h2 4`. "
            f"Received: {' '.join(words)!r}"
        )
    return [
        hosts.HostSlots(name, int(slots))
        for name, slots in zip(words[::2], words[1::2], strict=True)
        if int(slots)
    ]


def _names_in(path, variable):
    return [host.name for host in hostfile.read(path, variable) for _ in range(host.slots or 1)]


# What the MPI Operator of Kubernetes and the Kubeflow Trainer mount, for each MPI.
HOSTFILES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)


def _mounted_hosts(environment):
    """Reads the hostfile that a variable of an MPI names."""
    variable = mounted_hostfile(environment)
    return hostfile.read(environment[variable], variable) if variable else None


def mounted_hostfile(environment):
    """The first variable of an MPI that names a hostfile; `None` without one."""
    for variable in HOSTFILES:
        if environment.get(variable, "none") not in ("", "none"):
            return variable
    return None


# The first row that has a variable set counts: an mpirun in a Slurm job sets its own ones too.
LAUNCHERS = (
    # A hostfile that was named for this job counts more than what a scheduler says.
    Launcher("the hostfile of the environment", read_hosts=_mounted_hosts),
    Launcher(
        "MPICH's or Intel MPI's mpirun (Hydra)",
        *("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
        commands=("mpirun", "mpiexec", "mpiexec.hydra", "mpiexec.gforker"),
        agents=("hydra_pmi_proxy", "hydra_bstrap_pr", "pmi_proxy"),
        is_mpirun=True,
    ),
    Launcher(
        "Open MPI's mpirun",
        *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
        *("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        launch=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        commands=("orterun", "prterun", "prun"),
        agents=("orted", "prted", "prte"),
        is_mpirun=True,
    ),
    Launcher(
        "PALS' mpiexec",
        *("PALS_SIZE", "PALS_RANKID", "PALS_LOCAL_SIZE", "PALS_LOCAL_RANKID"),
        launch=("PALS_APID",),
        commands=("aprun",),
        agents=("palsd",),
    ),
    Launcher(
        "jsrun",
        *("JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"),
        *("JSM_NAMESPACE_LOCAL_SIZE", "JSM_NAMESPACE_LOCAL_RANK"),
        launch=("JSM_JSRUN_JOBID",),
        commands=("jsrun",),
        agents=("jsmd",),
    ),
    Launcher(
        "Flux",
        *("FLUX_JOB_SIZE", "FLUX_TASK_RANK", "", "FLUX_TASK_LOCAL_ID"),
        launch=("FLUX_JOB_ID",),
        agents=("flux-shell", "flux-broker"),
    ),
    Launcher(
        "Slurm's srun",
        *("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
        *("SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID"),
        launch=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        commands=("srun",),
        agents=("slurmstepd",),
        read_hosts=_slurm_hosts,
    ),
    Launcher("PBS", launch=("PBS_JOBID",), read_hosts=_pbs_hosts),
    Launcher("LSF", launch=("LSB_JOBID",), agents=("blaunch", "res"), read_hosts=_lsf_hosts),
)


def first_integer(field, environment=None):
    """What the first launcher says of a field, such as `rank`.

    Args:
        field: String. `size`, `rank`, `local_size` or `local_rank`.
        environment: Mapping. Defaults to `None`, that of this process.

    Returns:
        Integer, or `None` if no launcher says it.
    """
    environment = os.environ if environment is None else environment
    for launcher in LAUNCHERS:
        text = environment.get(getattr(launcher, field) or "-", "")
        if text.isdigit():
            return int(text)
        counts = hosts.expand_counts(text) if field == "local_size" else []
        node = environment.get("SLURM_NODEID", "")
        if node.isdigit() and int(node) < len(counts):
            return counts[int(node)]
    return None


def of_rank(environment=None):
    """The launcher that started this process as a rank; `None` without one."""
    environment = os.environ if environment is None else environment
    for launcher in LAUNCHERS:
        if environment.get(launcher.size or "-", "").isdigit():
            return launcher
    return None


def allocated(environment=None):
    """The hosts that a scheduler gave to this job.

    Returns:
        Pair: `Launcher`, and a list of `HostSlots`. `None` outside of an allocation.

    Raises:
        ValueError: If a variable of a scheduler has a wrong value.
    """
    environment = os.environ if environment is None else environment
    for launcher in LAUNCHERS:
        found = launcher.read_hosts(environment)
        if found is not None:
            return launcher, found
    return None
