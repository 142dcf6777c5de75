"""The CPUs that each rank may use, and how many compute threads a rank starts.

A rank's affinity mask alone does not tell it. Launchers bind several ranks to the same cores (Open
MPI binds more than two ranks to whole packages), and a container limits CPU time without any mask.
"""

import dataclasses
import fractions
import math
import os

from easyddl.runtime import cgroup, console, launcher, processes

# Slurm's parent of the ranks may run on all CPUs of a host, also on those of other jobs.
_SLURM, _SLURM_CPUS = "slurmstepd", "SLURM_CPUS_ON_NODE"

_agreed = None  # this rank's number of threads, once the ranks have compared their CPUs


@dataclasses.dataclass(frozen=True)
class RankCpus:
    """The CPUs that one rank may use. CPUs are the kernel's logical CPUs.

    Attributes:
        machine: String that is the same for all ranks on one kernel.
        cpus: Frozen set. The rank's affinity mask.
        offered: Integer. How many CPUs the launcher could give to its ranks on this machine; the
            number of `cpus` unless the launcher has bound the rank to some of them.
        quota: `cgroup.CpuQuota` or `None`.
        host: String. The name of the rank's host.
    """

    machine: str
    cpus: frozenset
    offered: int
    quota: cgroup.CpuQuota | None = None
    host: str = ""


def of_this_process(host=""):
    """The `RankCpus` of this process."""
    cpus = frozenset(os.sched_getaffinity(0))
    return RankCpus(_machine(), cpus, _offered(cpus), cgroup.cpu_quota(), host)


def compute_threads():
    """The number of this rank's compute threads, so that the ranks of a machine share its CPUs.

    Before the ranks know each other, it is an estimate from the rank's own mask and the launcher's
    number of ranks on this machine.
    """
    return estimate(of_this_process(), launcher.local_size()) if _agreed is None else _agreed


def threads_in_environment(name):
    """The number of threads that an environment variable sets, or `None`."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


def are_limited():
    """Whether this rank should start fewer threads than it has CPUs, or shares its machine."""
    return launcher.local_size() > 1 or compute_threads() < len(os.sched_getaffinity(0))


def estimate(mine, ranks):
    """The number of threads of a rank that knows only its own CPUs.

    Args:
        mine: `RankCpus`.
        ranks: Integer. The number of ranks on this machine.
    """
    # A mask may belong to this rank alone or to all of them. A fair part of all CPUs fits both.
    threads = min(len(mine.cpus), mine.offered // ranks)
    if mine.quota is not None:
        threads = min(threads, math.floor(mine.quota.cpus / ranks))
    return max(1, threads)


def threads_of(rank, everyones):
    """The number of threads of a rank, from the CPUs of all ranks.

    Each CPU is divided by the number of ranks whose masks contain it, and each quota by the number
    of ranks that share it.

    Args:
        rank: Integer.
        everyones: List of `RankCpus`, by rank.
    """
    mine = everyones[rank]
    mates = [each for each in everyones if each.machine == mine.machine]
    share = sum(fractions.Fraction(1, sum(cpu in mate.cpus for mate in mates)) for cpu in mine.cpus)
    threads = math.floor(share)
    if mine.quota is not None:
        sharers = sum(mate.quota == mine.quota for mate in mates)
        threads = min(threads, math.floor(mine.quota.cpus / sharers))
    return max(1, threads)


def compare(comm, mine):
    """Finds out how many threads each rank should start, and warns if CPUs are left unused.

    Collective. `compute_threads` returns the result afterwards.

    Args:
        comm: The mpi4py communicator of all ranks.
        mine: `RankCpus`.
    """
    global _agreed
    everyones = comm.allgather(mine)
    _agreed = threads_of(comm.rank, everyones)
    text = unused(everyones) if comm.rank == 0 and launcher.size() is not None else None
    if text is not None:
        console.say(text)


def unused(everyones):
    """The warning that a launcher has bound ranks to few of the CPUs that it could give them.

    Args:
        everyones: List of `RankCpus`, by rank.

    Returns:
        String; `None` if no machine has ranks that use less than half of what it offers.
    """
    machines = {}
    for each in everyones:
        machines.setdefault(each.machine, []).append(each)
    for mates in machines.values():
        used = len(frozenset().union(*(each.cpus for each in mates)))
        offered = max(each.offered for each in mates)
        quotas = {each.quota for each in mates}
        if None not in quotas:
            offered = min(offered, math.ceil(sum(quota.cpus for quota in quotas)))
        if 2 * used <= offered:
            ranks = "1 rank uses" if len(mates) == 1 else f"{len(mates)} ranks use"
            return (
                f"warning: {ranks} {used} of {offered} CPUs on host {mates[0].host}, because the "
                "launcher has bound each rank to few of them. Start the job with `easyddl run`, "
                "or pass --bind-to none to mpirun."
            )
    return None


def _machine():
    """A name of the running kernel, which is the same in all containers of a machine."""
    return processes.boot_id() or os.uname().nodename


def _offered(cpus):
    """How many CPUs the launcher could give to the ranks of this machine."""
    parent = os.getppid()
    try:
        if processes.read(parent).name == _SLURM:
            return max(len(cpus), int(os.environ.get(_SLURM_CPUS, "0")))
        return len(cpus | os.sched_getaffinity(parent))
    except (OSError, ValueError):
        return len(cpus)
