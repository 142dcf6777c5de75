"""The start of the engine: MPI, the ranks' settings, the topology and the first communicator."""

import contextlib
import dataclasses
import os
import socket
from typing import Any

from easyddl.hosts import granted_hosts, launched_process, launchers
from easyddl.profiling import trace_file
from easyddl.runtime import (
    affinity,
    console,
    deadlines,
    main_thread,
    mpi_files,
    mpi_library,
    topology_report,
)


@dataclasses.dataclass
class Engine:
    """The engine after its start.

    Attributes:
        core: The module `easyddl._core`.
        world: `_core.World`. All ranks of the job.
        communicator: `_core.Communicator` of the collectives that the script calls.
        reducer_group: `_core.ReducerGroup`. It owns the resources that all reducers share.
        activities: List of strings. The long activities of this rank, the innermost last.
        ends_together: Boolean. Whether a bad exit status is an orderly end of the job.
    """

    core: Any
    world: Any
    communicator: Any
    reducer_group: Any
    activities: list[str] = dataclasses.field(default_factory=list)
    ends_together: bool = False


def start():
    """Starts MPI and the engine. All ranks must call it, once.

    Returns:
        `Engine`.

    Raises:
        RuntimeError: If MPI or the engine cannot be loaded, or the launcher belongs to another MPI.
        ValueError: If a setting of any rank is wrong. All ranks raise the same error.
    """
    mpi = mpi_library.load_mpi()
    core = mpi_library.load_core(mpi)
    seconds, problem = deadlines.warn_and_abort()
    rank, siblings = launched_process.rank(), launched_process.siblings()
    may_exit = launched_process.may_exit()
    monitor = core.StartupMonitor(rank, os.uname().nodename, *seconds, may_exit, **siblings)
    try:
        return _start_monitored(mpi, core, monitor, seconds, problem)
    finally:
        monitor.stop()


def _start_monitored(mpi, core, monitor, seconds, problem):
    """Starts the engine while a monitor applies the deadlines and Ctrl-C.

    Args:
        mpi: The module `mpi4py.MPI`.
        core: The module `easyddl._core`.
        monitor: `_core.StartupMonitor`. It prints the name of a step that takes too long.
        seconds: Pair of deadlines.
        problem: The `ValueError` for a wrong deadline of this rank, or `None`.
    """
    if not mpi.Is_initialized():
        mpi_library.check_launcher_before_start(mpi)
        mpi_library.respect_protected_memory()
        monitor.enter("MPI_Init", False)
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
    comm = mpi.COMM_WORLD
    monitor.enter("the comparison of the ranks' settings", True)
    place = _agreed_place(mpi, problem)
    affinity.compare(comm, place)
    timeline = trace_file.open_file(comm, place.host)
    monitor.enter("the search for ranks that share a host", True)
    network = _network(comm, place.host)
    world = _world(core, place.host, seconds, network)
    if timeline is not None:
        monitor.enter("the comparison of the ranks' clocks", True)
        core.start_timeline(world, timeline)
    monitor.enter("the report of the topology", True)
    threads = affinity.compute_threads() if launched_process.size() is not None else None
    topology_report.print_topology(comm, world, threads, network["racks"])
    monitor.enter("the creation of the first communicator", True)
    communicator = core.Communicator(world, watch_signals=True)
    return Engine(core, world, communicator, core.ReducerGroup(communicator))


def _world(core, host, seconds, network):
    """Creates the engine's `World`, which finds out which ranks share a host."""
    world = core.World(
        host,
        *seconds,
        **network,
        gpu=os.environ.get("EASYDDL_GPU", "").strip(),
        cuda_aware=os.environ.get("EASYDDL_CUDA_AWARE_MPI", "").strip(),
    )
    core.start_exit_protocol(world)
    world.set_stack(main_thread.where)
    core.set_nccl_folders(mpi_library.nccl_folders())
    return world


def _network(comm, host):
    """Returns what the environment or a plan file says of the hosts. That of rank 0 counts.

    Args:
        comm: The mpi4py communicator of all ranks.
        host: String. The name of this rank's host.

    Returns:
        Dict of arguments of `_core.World`.
    """
    racks, order, plan = (
        os.environ.get(f"EASYDDL_{name}", "").strip() for name in ("RACKS", "HOST_ORDER", "PLAN")
    )
    named = {"racks": racks, "host_order": order, "algorithm": _algorithm()}
    hosts = comm.gather(host)
    with _agreement(comm):
        if hosts is None or not plan:
            return named
        from easyddl.plan import job_hosts  # only the root of a job with a plan needs it

        found = job_hosts.of_hosts(plan, list(dict.fromkeys(hosts)), "EASYDDL_PLAN", os.environ)
    return {**found, "algorithm": named["algorithm"] or found["algorithm"]}


def _algorithm():
    """Returns the algorithm between hosts that the user chose; empty without a choice.

    EASYDDL_ROUTE is the former name of the environment variable.
    """
    chosen = os.environ.get("EASYDDL_ALGORITHM", "").strip()
    former = os.environ.get("EASYDDL_ROUTE", "").strip()
    if former and launched_process.rank() == 0:
        what = "is ignored, because both are set" if chosen else "still works"
        console.say(f"warning: EASYDDL_ROUTE is now called EASYDDL_ALGORITHM. The old name {what}.")
    return chosen or former


def _agreed_place(mpi, problem):
    """Returns this rank's host and CPUs, after all ranks have checked their settings.

    Args:
        mpi: The module `mpi4py.MPI`, initialized.
        problem: The error that this rank already found in its settings, or `None`.

    Returns:
        `affinity.RankCpus`.
    """
    comm = mpi.COMM_WORLD
    hosts = comm.allgather(os.uname().nodename)
    mpi_files.remove_own()
    with _agreement(comm):
        mpi_library.check_launcher(mpi)
        _check_hosts(comm.rank, hosts)
        if problem is not None:
            raise problem
        return affinity.of_this_process(_host_name(comm.rank, comm.size))


@contextlib.contextmanager
def _agreement(comm):
    """Returns a context for all ranks. If its body fails on any rank, all ranks raise that error.

    Args:
        comm: The mpi4py communicator of all ranks.
    """
    problem = None
    try:
        yield
    except Exception as error:
        problem = error
    gathered = comm.allgather((problem and (type(problem), str(problem)), os.uname().nodename))
    failed = [rank for rank, (failure, _) in enumerate(gathered) if failure]
    if not failed:
        return
    (kind, text), host = gathered[failed[0]]
    if any(failure != gathered[0][0] for failure, _ in gathered):
        text = f"{text} (on rank {failed[0]} on host {host})"
    raise (kind if kind in (OSError, ValueError) else RuntimeError)(text) from None


def _check_hosts(rank, hosts):
    """Raises an error, or warns, if the ranks run on fewer hosts than the user or scheduler named.

    Args:
        rank: Integer. This rank.
        hosts: List with the host of each rank, as its kernel names it.
    """
    found = granted_hosts.fewer_than_allocated(os.environ, len(hosts), hosts)
    if found is None:
        return
    if launchers.mounted_hostfile(os.environ):
        raise RuntimeError(found)  # of an allocation, a job may use only a part
    if rank == 0:
        console.say(found)


def _host_name(rank, size):
    """Returns the name of this rank's host.

    EASYDDL_HOSTS gives each rank a host name, so that tests can simulate several hosts on one
    kernel.
    """
    names = os.environ.get("EASYDDL_HOSTS")
    if not names:
        return socket.gethostname()
    hosts = [name.strip() for name in names.split(",")]
    if len(hosts) != size or not all(hosts):
        raise ValueError(
            "EASYDDL_HOSTS must name the host of each rank, as in EASYDDL_HOSTS=a,a,b,b for "
            f"four ranks. There are {size} ranks. Received: {names!r}"
        )
    return hosts[rank]
