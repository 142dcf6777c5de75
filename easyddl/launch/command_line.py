"""The command lines by which each launcher starts the ranks.

What a launcher would have to pass through other hosts' shells, such as the script's arguments, is
not on these lines: the ranks get it over their connection to `easyddl run`.
"""

import dataclasses
import os
import re
import shutil
import subprocess
import sys

from easyddl.launch import environment, mpi

RANK = ["-m", "easyddl.launch.rank"]

# Makes ssh fail instead of asking for a password, which nobody would see.
_SSH_OPTIONS = "-o BatchMode=yes -o ConnectTimeout=20"


@dataclasses.dataclass(frozen=True)
class CommandLine:
    """What starts the ranks.

    Attributes:
        launcher: String, for messages.
        arguments: List of strings.
        environment: Dictionary. Variables of the launcher itself.
    """

    launcher: str
    arguments: list[str]
    environment: dict[str, str]


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
    if kind == "auto":
        kind = "srun" if placement.cpus is None and _should_use_srun(placement) else None
    if kind == "srun" and placement.cpus is not None:
        raise ValueError(
            "`--cpus` cannot limit ranks that Slurm's daemons start. Leave out `--launcher srun`."
        )
    if kind == "srun":
        return _srun(request, placement, variables)
    if placement.scheduler is None and variables.get("FLUX_JOB_ID") and request.hosts is None:
        raise RuntimeError(
            "easyddl run does not start jobs within Flux. Start the script by Flux itself: "
            "`flux run -n N python train.py`, or name hosts with -H."
        )
    found = mpi.find()
    if kind is not None and (kind == "openmpi") != found.is_open_mpi:
        raise RuntimeError(
            f"`--launcher {kind}` does not fit to {found.mpirun}, which is of {found.family}."
        )
    line = _open_mpi if found.is_open_mpi else _hydra
    return line(request, placement, found, variables)


def _hosts(placement):
    return ",".join(map(str, placement.hosts))


def _hydra(request, placement, found, variables):
    """MPICH's and Intel MPI's launcher."""
    is_intel = found.family == mpi.INTEL
    # Programs other than ssh have other options.
    options = "" if request.rsh else _SSH_OPTIONS
    name = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS" if is_intel else "HYDRA_LAUNCHER_EXTRA_ARGS"
    extra = {name: variables.get(name, options)}
    # Ranks are bound to cores by easyddl, and hosts are named here, whatever these say.
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
        line += ["-np", str(placement.size), *hosts, sys.executable, *RANK]
    return CommandLine(found.family, line, extra)


def _intel_hosts(placement):
    """A set of arguments for each host: Intel MPI ignores the number of ranks in `-hosts`."""
    line = []
    for host in placement.hosts:
        line += [":", "-n", str(host.slots), "-host", host.name, sys.executable, *RANK]
    return line[1:]


def _open_mpi(request, placement, found, variables):
    """Open MPI's launcher: orterun until version 4, PRRTE's since 5."""
    is_new = found.family == mpi.OPEN_MPI_5
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
    return CommandLine(found.family, [*line, *request.mpi_args, sys.executable, *RANK], extra)


def _should_use_srun(placement):
    scheduler = placement.scheduler
    is_slurm = scheduler is not None and "srun" in scheduler.commands
    return is_slurm and shutil.which("srun") is not None and _offered_by_srun(mpi.find())


def _srun(request, placement, variables):
    """Slurm's launcher, which starts ranks by the nodes' own daemons."""
    if shutil.which("srun") is None:
        raise RuntimeError("`--launcher srun` needs srun on PATH, which is not there.")
    found = mpi.find()
    plugin = _offered_by_srun(found)
    if plugin is None:
        raise RuntimeError(
            f"This Slurm offers no way to start {found.family}: `srun --mpi=list` shows none of "
            f"{', '.join(_PLUGINS[found.family])}. Use `--launcher "
            f"{'openmpi' if found.is_open_mpi else 'hydra'}`."
        )
    counts = [host.slots for host in placement.hosts]
    line = ["srun", f"--mpi={plugin}", f"--nodes={len(counts)}", f"--ntasks={placement.size}"]
    line += ["--cpu-bind=none", "--overlap", "--kill-on-bad-exit=0", "--export=ALL"]
    if variables.get("SLURM_CPUS_PER_TASK"):
        # Since Slurm 22.05 srun does not take it from the allocation by itself.
        line.append(f"--cpus-per-task={variables['SLURM_CPUS_PER_TASK']}")
    # One name for each rank: Slurm has no other way to say how many each node runs.
    names = [host.name for host in placement.hosts for _ in range(host.slots)]
    line += ["--distribution=arbitrary", f"--nodelist={','.join(names)}"]
    return CommandLine("srun", [*line, *request.mpi_args, sys.executable, *RANK], {})


# The plugins of Slurm by which each MPI starts, the best first.
_PLUGINS = {
    mpi.HYDRA: ("cray_shasta", "pmi2", "pmix"),
    mpi.INTEL: ("pmi2",),
    mpi.OPEN_MPI_4: ("pmix", "pmi2"),
    mpi.OPEN_MPI_5: ("pmix",),
}


def _offered_by_srun(found):
    """The plugin by which srun starts this MPI; `None` without one."""
    try:
        listed = subprocess.run(
            ["srun", "--mpi=list"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=20,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    offered = re.findall(r"[a-z0-9_]+", listed)
    cray = "cray" in found.version.lower()
    for plugin in _PLUGINS[found.family]:
        if plugin in offered and (cray or plugin != "cray_shasta"):
            return plugin
    return None


def absolute(program):
    """The path of a program, which also holds in another current directory."""
    return os.path.abspath(shutil.which(program) or program)
