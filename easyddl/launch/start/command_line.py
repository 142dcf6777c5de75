"""The command lines by which each launcher starts the ranks.

The script's arguments are not on these lines, because a launcher would pass them through the shells
of other hosts. The ranks receive them over their connection to `easyddl run`.
"""

import dataclasses
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable

from easyddl.hosts import launchers
from easyddl.launch.start import environment, mpirun
from easyddl.runtime import command_process

RANK = command_process.python("easyddl.launch.supervise.rank")

# Makes ssh fail instead of asking for a password, which nobody would see.
_SSH_OPTIONS = "-o BatchMode=yes -o ConnectTimeout=20"


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """What starts the ranks.

    Attributes:
        launcher: String, for messages.
        arguments: List of strings.
        environment: Dictionary. Variables of the launcher itself.
        on_host: Function of a host's name and the words of a command. Returns the command line that
            runs the command on that host as the launcher would; `None` if it is not known.
    """

    launcher: str
    arguments: list[str]
    environment: dict[str, str]
    on_host: Callable[[str, list[str]], list[str]] | None = None


def make(request, placement, variables):
    """Makes the command line for a job.

    Args:
        request: `Request`.
        placement: `Placement`.
        variables: Mapping. The environment of this process.

    Raises:
        RuntimeError: If there is no launcher for the job.
        ValueError: If the launcher cannot limit the job's CPUs.
    """
    kind = request.launcher
    if kind == "srun" and placement.cpus is not None:
        raise ValueError(
            "`--cpus` cannot limit ranks that Slurm's daemons start. Leave out `--launcher srun`."
        )
    is_in_flux = placement.scheduler is None and variables.get("FLUX_JOB_ID")
    if kind != "srun" and is_in_flux and request.hosts is None:
        raise RuntimeError(
            "easyddl run does not start jobs within Flux. Start the script by Flux itself: "
            "`flux run -n N python train.py`, or name hosts with -H."
        )
    found = mpirun.find()
    may_choose = kind == "auto" and placement.cpus is None
    is_for_srun = may_choose and (_is_of_slurm(placement) or _is_in_groups(placement, variables))
    plugin = _offered_by_srun(found) if kind == "srun" or is_for_srun else None
    if kind == "srun" or plugin is not None:
        return _srun(request, placement, found, plugin, variables)
    _check_groups(placement, found, variables)
    if kind != "auto" and (kind == "openmpi") != found.is_open_mpi:
        raise RuntimeError(
            f"`--launcher {kind}` does not match {found.mpirun}, which is of {found.family}."
        )
    line = _open_mpi if found.is_open_mpi else _hydra
    arguments, extra = line(request, placement, found, variables)
    remote_shell = _remote_shell(request, placement, variables)
    return CommandLine(f"the mpirun of {found.family}", arguments, extra, remote_shell)


# Variables whose value `slurm` makes mpirun start its helpers by srun.
_HELPERS = ("HYDRA_LAUNCHER", "HYDRA_BOOTSTRAP", "I_MPI_HYDRA_BOOTSTRAP")


def _check_groups(placement, found, variables):
    """Raises an error if mpirun would have to start ranks in several groups of a Slurm job.

    It reaches hosts that the user names, unless it uses srun, which then starts one group alone.
    """
    by_srun = any(variables.get(name) == "slurm" for name in _HELPERS)
    starts_group = _is_of_slurm(placement) or (by_srun and _is_in_groups(placement, variables))
    if starts_group and len(_by_group(placement, variables)) > 1:
        raise RuntimeError(
            "This allocation is a heterogeneous job of Slurm, in whose groups only srun starts one "
            "job. Use `--launcher srun`. For it, `srun --mpi=list` must show one of "
            f"{', '.join(_PLUGINS[found.family])}."
        )


# What chooses another means than ssh by which mpirun starts its helpers on hosts: the beginnings of
# variables, and words in options.
_OTHER_SHELLS = (*_HELPERS, "OMPI_MCA_plm", "PRTE_MCA_plm")
_OTHER_SHELL = re.compile("launcher|bootstrap|plm")


def _remote_shell(request, placement, variables):
    """Returns how mpirun starts its helpers, as `CommandLine.on_host` describes it."""
    allocation = launchers.allocated(variables)
    if placement.local or (allocation is not None and allocation[0].launch):
        return None  # in an allocation, mpirun may use what the scheduler has
    if any(_OTHER_SHELL.search(argument) for argument in request.mpi_args):
        return None
    if request.rsh:
        program = [absolute(request.rsh)]
    elif any(name.startswith(_OTHER_SHELLS) for name in variables):
        return None
    else:
        program = ["ssh", *_SSH_OPTIONS.split()]
    return lambda host, words: [*program, host, *map(shlex.quote, words)]


def _hosts(placement):
    return ",".join(map(str, placement.hosts))


def _hydra(request, placement, found, variables):
    """Returns the command line of MPICH's or Intel MPI's launcher, and its variables."""
    is_intel = found.family == mpirun.INTEL
    # Programs other than ssh have other options.
    options = "" if request.rsh else _SSH_OPTIONS
    name = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS" if is_intel else "HYDRA_LAUNCHER_EXTRA_ARGS"
    extra = {name: variables.get(name, options)}
    # These would override easyddl's own binding to cores and its list of hosts.
    extra |= {"HYDRA_BINDING": "none", "I_MPI_PIN": "0"}
    line = [found.mpirun]
    launcher = "-bootstrap" if is_intel else "-launcher"
    if placement.local or placement.cpus is not None:
        line += [launcher, "fork"]
    if request.rsh:
        line += [launcher, "rsh", f"{launcher}-exec", absolute(request.rsh)]
    if request.nic and not placement.local:
        line += ["-iface", request.nic.split(",")[0]]
    line += request.mpi_args
    if is_intel and not placement.local:
        line += _intel_hosts(placement)
    else:
        hosts = [] if placement.local else ["-hosts", _hosts(placement)]
        line += ["-np", str(placement.size), *hosts, *RANK]
    return line, extra


def _intel_hosts(placement):
    """Returns a set of arguments for each host.

    Intel MPI ignores the number of ranks in `-hosts`.
    """
    line = []
    for host in placement.hosts:
        line += [":", "-n", str(host.slots), "-host", host.name, *RANK]
    return line[1:]


def _open_mpi(request, placement, found, variables):
    """As `_hydra`, of Open MPI's launcher: orterun until version 4, then PRRTE."""
    is_new = found.family == mpirun.OPEN_MPI_5
    own = "--prtemca" if is_new else "--mca"
    line = [found.mpirun, "-np", str(placement.size), "--bind-to", "none"]
    if os.geteuid() == 0:
        line.append("--allow-run-as-root")
    line += ["--map-by", "slot:OVERSUBSCRIBE" if is_new else "slot"]
    if not is_new:
        line.append("--oversubscribe")
    if not placement.local:
        line += ["-H", _hosts(placement)]
    agent = "plm_ssh_agent" if is_new else "plm_rsh_agent"
    arguments = "plm_ssh_args" if is_new else "plm_rsh_args"
    line += [own, agent, absolute(request.rsh)] if request.rsh else [own, arguments, _SSH_OPTIONS]
    if request.tcp:
        transports = "tcp,self,sm" if is_new else "tcp,self,vader"
        line += ["--mca", "pml", "ob1", "--mca", "btl", transports]
    if request.nic:
        line += ["--mca", "btl_tcp_if_include", request.nic]
        if not placement.local:
            line += [own, "prte_if_include" if is_new else "oob_tcp_if_include", request.nic]
    for name in environment.BEFORE_START:
        if name in variables or name == "EASYDDL_LAUNCH":
            line += ["-x", name]
    # A hostfile of the environment has been read already.
    extra = {"PRTE_MCA_prte_default_hostfile": "none", "OMPI_MCA_orte_default_hostfile": "none"}
    return [*line, *request.mpi_args, *RANK], extra


def _is_of_slurm(placement):
    return placement.scheduler is not None and "srun" in placement.scheduler.commands


def _is_in_groups(placement, variables):
    """Returns whether the user names hosts of a heterogeneous Slurm job.

    mpirun may not reach them.
    """
    if placement.scheduler is not None:
        return False
    names = {host.name for group in launchers.slurm_groups(variables) for host in group}
    return bool(names) and names.issuperset(host.name for host in placement.hosts)


def _srun(request, placement, found, plugin, variables):
    """Returns the command line of Slurm's launcher, which needs no ssh."""
    if shutil.which("srun") is None:
        raise RuntimeError("`--launcher srun` needs srun on PATH, which is not there.")
    if plugin is None:
        raise RuntimeError(
            f"This Slurm offers no way to start {found.family}: `srun --mpi=list` shows none of "
            f"{', '.join(_PLUGINS[found.family])}. Use `--launcher "
            f"{'openmpi' if found.is_open_mpi else 'hydra'}`."
        )
    line = ["srun"]
    for group, hosts in _by_group(placement, variables):
        line += [*([":"] if line[1:] else []), f"--mpi={plugin}", *_srun_group(group, variables)]
        line += [*_srun_hosts(hosts), *request.mpi_args, *RANK]
    return CommandLine("srun", line, {}, lambda *asked: _srun_on(*asked, variables))


def _by_group(placement, variables):
    """Returns the hosts in each group of a heterogeneous Slurm job.

    Elsewhere all hosts are in the group `None`.

    Returns:
        List of pairs: the number of the group, and a list of `HostSlots`.

    Raises:
        ValueError: If a host is in no group.
    """
    groups = launchers.slurm_groups(variables)
    if not groups:
        return [(None, placement.hosts)]
    numbers = {host.name: number for number, group in enumerate(groups) for host in group}
    for host in placement.hosts:
        if host.name not in numbers:
            raise ValueError(
                f"{placement.source} names the host {host.name}, which is not in this "
                f"heterogeneous job of Slurm ({', '.join(numbers)})."
            )
    used = sorted({numbers[host.name] for host in placement.hosts})
    return [
        (number, [host for host in placement.hosts if numbers[host.name] == number])
        for number in used
    ]


def _srun_group(group, variables):
    """Returns the options of srun that do not depend on the hosts."""
    options = [] if group is None else [f"--het-group={group}"]
    options += ["--cpu-bind=none", "--overlap", "--kill-on-bad-exit=0", "--export=ALL"]
    suffix = "" if group is None else f"_HET_GROUP_{group}"
    cpus = variables.get(f"SLURM_CPUS_PER_TASK{suffix}")
    # Since Slurm 22.05, srun does not take this from the allocation.
    return [*options, f"--cpus-per-task={cpus}"] if cpus else options


def _srun_hosts(hosts):
    # One name for each rank, because Slurm has no other option for the ranks of each host.
    names = [host.name for host in hosts for _ in range(host.slots)]
    return [
        *(f"--nodes={len(hosts)}", f"--ntasks={len(names)}"),
        *("--distribution=arbitrary", f"--nodelist={','.join(names)}"),
    ]


def _srun_on(host, words, variables):
    """As `CommandLine.on_host` describes it."""
    groups = enumerate(launchers.slurm_groups(variables))
    group = next((n for n, group in groups if host in (each.name for each in group)), None)
    where = ["--nodes=1", "--ntasks=1", f"--nodelist={host}", "--input=none"]
    return ["srun", *_srun_group(group, variables), *where, *words]


# The plugins of Slurm by which each MPI starts, the best first.
_PLUGINS = {
    mpirun.HYDRA: ("cray_shasta", "pmi2", "pmix"),
    mpirun.INTEL: ("pmi2",),
    mpirun.OPEN_MPI_4: ("pmix", "pmi2"),
    mpirun.OPEN_MPI_5: ("pmix",),
}


def _offered_by_srun(found):
    """Returns the plugin by which srun starts this MPI; `None` without one."""
    try:
        listed = mpirun.printed_by("srun", "--mpi=list")
    except (OSError, subprocess.TimeoutExpired):
        return None
    offered = re.findall(r"[a-z0-9_]+", listed)
    cray = "cray" in found.version.lower()
    for plugin in _PLUGINS[found.family]:
        if plugin in offered and (cray or plugin != "cray_shasta"):
            return plugin
    return None


def absolute(program):
    """Returns the path of a program, which also holds in another current directory."""
    return os.path.abspath(shutil.which(program) or program)
