"""The CPUs that each rank may use, and the number of compute threads of a rank.

A rank's affinity mask is not enough to choose this number. Launchers bind several ranks to the same
cores (Open MPI binds more than two ranks to whole packages), and a container limits the CPU time
without changing the mask.
"""

import dataclasses
import fractions
import math
import os

from easyddl.hosts import launched_process
from easyddl.machine import cgroup, processes
from easyddl.runtime import console

# The ranks' parent in Slurm may run on all CPUs of a host, including those of other jobs.
_SLURM, _SLURM_CPUS = "slurmstepd", "SLURM_CPUS_ON_NODE"

_agreed = None  # this rank's number of threads, once the ranks have compared their CPUs


@dataclasses.dataclass(frozen=True)
class RankCpus:
    """The CPUs that one rank may use. CPUs are the kernel's logical CPUs.

    Attributes:
        kernel: String that is equal for all ranks on the same kernel.
        cpus: Frozen set. The rank's affinity mask.
        offered: Integer. How many CPUs the launcher can offer its ranks on this host. It is more
            than the number of `cpus` if the launcher has bound the rank to some of them.
        quota: `cgroup.CpuQuota` or `None`.
        host: String. The name of the rank's host.
    """

    kernel: str
    cpus: frozenset
    offered: int
    quota: cgroup.CpuQuota | None = None
    host: str = ""


def of_this_process(host=""):
    """Returns the `RankCpus` of this process."""
    cpus = frozenset(os.sched_getaffinity(0))
    return RankCpus(_kernel(), cpus, _offered(cpus), cgroup.cpu_quota(), host)


def compute_threads():
    """Returns the number of compute threads of this rank. The ranks of a host share its CPUs.

    Before the start this is an estimate from the rank's own mask and the launcher's number of ranks
    on this host.
    """
    if _agreed is None:
        return estimate(of_this_process(), launched_process.local_size())
    return _agreed


def threads_in_environment(name):
    """Returns the number of threads that an environment variable sets, or `None`."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() and int(text) > 0 else None


def are_limited():
    """Returns whether easyddl should limit this rank's threads.

    It should if other ranks run on this host, or if this rank should start fewer threads than it
    has CPUs.
    """
    return launched_process.local_size() > 1 or compute_threads() < len(os.sched_getaffinity(0))


def estimate(mine, ranks):
    """Returns the number of threads of a rank that knows only its own CPUs.

    Args:
        mine: `RankCpus`.
        ranks: Integer. The number of ranks on this host.
    """
    # The mask may be that of this rank alone, or the same for all ranks. This serves both cases.
    threads = min(len(mine.cpus), mine.offered // ranks)
    if mine.quota is not None:
        threads = min(threads, math.floor(mine.quota.cpus / ranks))
    return max(1, threads)


def threads_of(rank, by_rank):
    """Returns the number of threads of a rank, from the CPUs of all ranks.

    Each CPU is divided by the number of ranks whose masks contain it, and each quota by the number
    of ranks that share it.

    Args:
        rank: Integer.
        by_rank: List of `RankCpus`, by rank.
    """
    mine = by_rank[rank]
    mates = [each for each in by_rank if each.kernel == mine.kernel]
    share = sum(fractions.Fraction(1, sum(cpu in mate.cpus for mate in mates)) for cpu in mine.cpus)
    threads = math.floor(share)
    if mine.quota is not None:
        sharers = sum(mate.quota == mine.quota for mate in mates)
        threads = min(threads, math.floor(mine.quota.cpus / sharers))
    return max(1, threads)


def compare(comm, mine):
    """Computes the number of threads of each rank, and warns if CPUs are left unused.

    Collective. `compute_threads` returns the result afterwards.

    Args:
        comm: The mpi4py communicator of all ranks.
        mine: `RankCpus`.
    """
    global _agreed
    by_rank = comm.allgather(mine)
    _agreed = threads_of(comm.rank, by_rank)
    text = unused(by_rank) if comm.rank == 0 and launched_process.size() is not None else None
    if text is not None:
        console.say(text)


def unused(by_rank):
    """Returns a warning if a launcher has bound the ranks of a host to few of its CPUs.

    Args:
        by_rank: List of `RankCpus`, by rank.

    Returns:
        String; `None` if the ranks of every host use more than half of its CPUs.
    """
    kernels = {}
    for each in by_rank:
        kernels.setdefault(each.kernel, []).append(each)
    for mates in kernels.values():
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


def _kernel():
    """Returns an id of the running kernel, which is equal in all containers of a host."""
    return processes.boot_id() or os.uname().nodename


def _offered(cpus):
    """Returns how many CPUs the launcher can offer the ranks of this host."""
    parent = os.getppid()
    try:
        if processes.read(parent).name == _SLURM:
            return max(len(cpus), int(os.environ.get(_SLURM_CPUS, "0")))
        return len(cpus | os.sched_getaffinity(parent))
    except (OSError, ValueError):
        return len(cpus)
