"""The launchers and schedulers that easyddl supports, and the environment variables that they set.

A launcher (mpirun, srun) sets the number of a rank. A scheduler sets the hosts that a job may use.
Many programs are both, so they share one table. The variables are from the programs' manuals:
Hydra's `MPI_LOCALRANKID`, Open MPI's `OMPI_COMM_WORLD_*`, PALS' pals(7), jsrun's
`JSM_NAMESPACE_*`, flux-environment(7), srun(1), PBS' qsub(1) and LSF's "Environment variables".
"""

import dataclasses
import os
from collections.abc import Callable, Mapping

from easyddl.hosts import host_list, hostfile


@dataclasses.dataclass(frozen=True)
class Launcher:
    """A launcher or scheduler. A field is empty if it sets no such variable.

    Attributes:
        name: String, for messages.
        size: Name of the variable that holds the number of ranks.
        rank: Name of the variable that holds this process's rank.
        local_size: Name of the variable that holds the number of ranks on this host.
        local_rank: Name of the variable that holds the number among the ranks of this host.
        launch: Names of variables whose values identify a launch.
        commands: Names of the programs that a user starts, cut to 15 bytes as in the kernel.
        agents: Names of the programs that these commands run on each host.
        is_mpirun: Boolean. Whether it is the mpirun of an MPI, whose agents serve a single job.
        read_hosts: Function of the environment. Returns the list of `HostSlots` that a job may
            use, or `None` if the variables are not set.
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
    read_hosts: Callable[[Mapping[str, str]], list[host_list.HostSlots] | None] = (
        lambda environment: None
    )


def _slurm_hosts(environment):
    """Reads the nodes of a Slurm allocation, with the number of tasks on each of them."""
    groups = slurm_groups(environment)
    if groups:
        return [host for group in groups for host in group]
    text = environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST")
    if not text or not environment.get("SLURM_JOB_ID"):
        return None
    return _slurm_nodes(text, environment.get("SLURM_TASKS_PER_NODE", ""))


def _slurm_nodes(names, tasks):
    names, counts = host_list.expand_names(names), host_list.expand_counts(tasks)
    if len(counts) != len(names):
        return [host_list.HostSlots(name) for name in names]
    return [host_list.HostSlots(*pair) for pair in zip(names, counts, strict=True)]


def slurm_groups(environment):
    """Returns the nodes of each group of a heterogeneous Slurm job, such as `salloc -N1 : -N1`.

    A node belongs to one group only. Variables without the number of a group are absent in such a
    job, or describe its first group.

    Args:
        environment: Mapping.

    Returns:
        List with a list of `HostSlots` for each group; empty for another job.

    Raises:
        ValueError: If a variable of Slurm has a wrong value.
    """
    size = environment.get("SLURM_HET_SIZE", "")
    if not size.isdigit() or not environment.get("SLURM_JOB_ID"):
        return []
    groups = []
    for number in range(int(size)):
        variable = f"SLURM_JOB_NODELIST_HET_GROUP_{number}"
        if not environment.get(variable):
            raise ValueError(
                f"{variable} must name the nodes of a group of this heterogeneous Slurm job, "
                f"because SLURM_HET_SIZE is {size}. It is not set."
            )
        tasks = environment.get(f"SLURM_TASKS_PER_NODE_HET_GROUP_{number}", "")
        groups.append(_slurm_nodes(environment[variable], tasks))
    return groups


def _pbs_hosts(environment):
    """Reads PBS' node file, which has a line for each slot."""
    path = environment.get("PBS_NODEFILE")
    return _hosts_in(path, "PBS_NODEFILE") if path else None


def _lsf_hosts(environment):
    """Reads LSF's list of hosts, such as `h1 4 h2 4`. The first host may have 0 slots."""
    words = environment.get("LSB_MCPU_HOSTS", "").split()
    if not words:
        path = environment.get("LSB_DJOB_HOSTFILE")
        return _hosts_in(path, "LSB_DJOB_HOSTFILE") if path else None
    if len(words) % 2 or not all(slots.isdigit() for slots in words[1::2]):
        raise ValueError(
            "LSB_MCPU_HOSTS must be a list of hosts and slots, as in `h1 4 h2 4`. "
            f"Received: {' '.join(words)!r}"
        )
    return [
        host_list.HostSlots(name, int(slots))
        for name, slots in zip(words[::2], words[1::2], strict=True)
        if int(slots)
    ]


def _hosts_in(path, variable):
    return [dataclasses.replace(h, slots=h.slots or 1) for h in hostfile.read(path, variable)]


# The variables in which the MPI Operator of Kubernetes and the Kubeflow Trainer name a hostfile.
HOSTFILES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "HYDRA_HOST_FILE",
    "I_MPI_HYDRA_HOST_FILE",
)


def _mounted_hosts(environment):
    """Reads the hostfile that a variable of an MPI names."""
    variable = mounted_hostfile(environment)
    if not variable:
        return None
    return hostfile.read(environment[variable], variable, is_complete=False)


def mounted_hostfile(environment):
    """Returns the first variable of an MPI that names a hostfile; `None` without one."""
    for variable in HOSTFILES:
        if environment.get(variable, "none") not in ("", "none"):
            return variable
    return None


# The first row with a variable that is set takes precedence. For example, mpirun in a Slurm job
# sets its own variables besides those of Slurm.
LAUNCHERS = (
    # A hostfile that was named for this job takes precedence over a scheduler.
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


def first_integer(field, environment=os.environ):
    """Returns the value of a field, such as `rank`, from the first launcher that sets it.

    Args:
        field: String. `size`, `rank`, `local_size` or `local_rank`.
        environment: Mapping. Defaults to the environment of this process.

    Returns:
        Integer, or `None` if no launcher sets the field.
    """
    for launcher in LAUNCHERS:
        text = environment.get(getattr(launcher, field) or "-", "")
        if text.isdigit():
            return int(text)
        counts = host_list.expand_counts(text) if field == "local_size" else []
        node = environment.get("SLURM_NODEID", "")
        if node.isdigit() and int(node) < len(counts):
            return counts[int(node)]
    return None


def of_rank(environment=os.environ):
    """Returns the launcher that started this process as a rank; `None` without one."""
    for launcher in LAUNCHERS:
        if environment.get(launcher.size or "-", "").isdigit():
            return launcher
    return None


def allocated(environment=os.environ):
    """Returns the hosts that a scheduler gave to this job.

    Returns:
        Pair: `Launcher`, and a list of `HostSlots`. `None` outside of an allocation.

    Raises:
        ValueError: If a variable of a scheduler has a wrong value.
    """
    for launcher in LAUNCHERS:
        found = launcher.read_hosts(environment)
        if found is not None:
            return launcher, found
    return None
