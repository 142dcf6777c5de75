"""A job whose start goes in the way that the command line says, where not all ranks go it.

Usage: start_job.py HOW
"""

import contextlib
import ctypes
import errno
import importlib
import itertools
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time

from telling import tell

HOW = sys.argv[1]


def interrupt_soon():
    subprocess.Popen(["/bin/sh", "-c", f"sleep 1.5; kill -INT {os.getpid()}"])


# Before easyddl, which then cannot speak of it.
LAUNCHED = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
if HOW == "module_is_missing" and LAUNCHED == 1:
    importlib.import_module("a_module_that_is_not_installed")
if HOW == "ended" and LAUNCHED == 1:
    sys.exit()
if HOW == "interrupted_in_init":
    if LAUNCHED == 0:
        interrupt_soon()
    else:
        time.sleep(600)
HAVE_NO_MPI = ("module_is_missing", "ended", "interrupted_in_init", "late_in_init")
if HOW not in (*HAVE_NO_MPI, "nested", "worker"):
    from mpi4py import MPI

    COMM = MPI.COMM_WORLD
    COMM.Barrier()

import engine_only  # noqa: E402, F401, I001
from easyddl.hosts import launched_process  # noqa: E402
from easyddl.runtime import engine, world  # noqa: E402

SYSTEM = ctypes.CDLL(None)


def error_of_start():
    """What the start fails with; a second one fails with the same error, and does not begin."""
    errors = []
    for _ in range(2):
        try:
            world.init()
        except Exception as error:
            errors.append(error)
    assert len(errors) == 2 and errors[0] is errors[1], errors
    assert not world.is_started()
    return f"{type(errors[0]).__name__}: {errors[0]}"


def start_again():
    # Where nothing but communicators is left of the start that failed.
    engine._failure = None


def module_is_missing():
    world.init()


def ended():
    world.init()


def late_in_init():
    time.sleep(6 if LAUNCHED == 1 else 0)
    world.init()
    tell("has started")


def interrupted_in_init():
    world.init()


def never_comes():
    if COMM.rank == 1:
        time.sleep(600)
    world.init()


def interrupted():
    if COMM.rank == 0:
        interrupt_soon()
        world.init()
    time.sleep(600)


def settings_of_one_rank():
    for name, value in (
        ("EASYDDL_HOSTS", "a,b"),
        ("EASYDDL_STALL_WARN", "soon"),
        ("EASYDDL_STALL_ABORT", "-1"),
    ):
        with contextlib.ExitStack() as stack:
            if COMM.rank == 1:
                os.environ[name] = value
                stack.callback(os.environ.pop, name)
            error = error_of_start()
        assert error.startswith(f"ValueError: {name} must "), error
        assert f"Received: {value!r} (on rank 1 on host " in error, error
        start_again()
    world.init()
    tell("has started")


def a_file_may_be_so_long(length):
    if COMM.rank == 0:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (length, most))


def memory_of_one_rank():
    a_file_may_be_so_long(10)
    error = error_of_start()
    assert error.startswith("Error: Rank 0 on host "), error
    assert " bytes of shared memory failed: File too large" in error, error
    start_again()
    a_file_may_be_so_long(64 << 10)  # enough for all but the shared buffer of a communicator
    error = error_of_start()
    assert error.startswith("Error: Rank 0 on host "), error
    tell("told", error)
    # That the script goes on and ends well leaves the job a failed one.


def pages():
    """Each rank reserves its own, and an error of one is an error of all."""
    last = COMM.size - 1
    SYSTEM.need_bytes_for_cores(2048)
    SYSTEM.forget_reserved()
    world.init()
    SYSTEM.need_bytes_for_cores(0)
    engine = world.engine()
    begins, lengths = (ctypes.c_long * 4096)(), (ctypes.c_long * 4096)()
    count = SYSTEM.reserved(begins, lengths)
    slots = [(b, n) for b, n in zip(begins[:count], lengths[:count], strict=True) if n > 10_000]
    # The slots of the shared buffer of the first communicator: they alternate between the ranks.
    assert len(slots) > 1, slots
    steps = {after[0] - before[0] for before, after in itertools.pairwise(slots)}
    assert steps == {COMM.size * slots[0][1]}, slots
    all_slots = sorted(itertools.chain(*COMM.allgather(slots)))
    assert len(set(all_slots)) == len(slots) * COMM.size
    for (begin, length), (following, _) in itertools.pairwise(all_slots):
        assert begin + length == following, all_slots
    assert_all_pages_are_there()
    if COMM.rank == last:
        SYSTEM.fail_fallocate(errno.EINTR, 3)
    engine.core.Communicator(engine.world, watch_signals=False)
    if COMM.rank == last:
        SYSTEM.fail_fallocate(errno.ENOMEM, 1)
    try:
        engine.core.Communicator(engine.world, watch_signals=False)
    except engine.core.Error as error:
        host = os.uname().nodename
        assert str(error).startswith(f"Rank {last} on host {host} failed: posix_fallocate"), error
        assert str(error).endswith("failed: Cannot allocate memory"), error
    else:
        raise AssertionError("no error")
    engine.communicator.barrier(world.fingerprint("the end"))
    tell("has started")


def assert_all_pages_are_there():
    """Also those that nobody has written to yet."""
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    mapped = [line.split()[0] for line in lines if "/memfd:easyddl" in line]
    assert mapped
    for addresses in mapped:
        try:
            memory = os.stat(f"/proc/self/map_files/{addresses}")
        except PermissionError:
            return  # it takes a privilege
        assert memory.st_blocks * 512 >= memory.st_size, memory


def memory_cannot_be_opened():
    SYSTEM.hide_memory()
    on_one_machine()


def memory_of_one_host_cannot_be_opened():
    if COMM.rank < 2:
        SYSTEM.hide_memory()
    world.barrier()
    tell("has started")


def on_one_machine():
    assert (world.local_rank(), world.local_size()) == (COMM.rank, COMM.size)
    assert (world.node_rank(), world.num_nodes()) == (0, 1)
    world.barrier()
    tell("has started")


def threads():
    found = []

    def start():
        found.append(world.engine())

    starters = [threading.Thread(target=start) for _ in range(4)]
    if COMM.rank == 1:
        time.sleep(1)
    for thread in starters:
        thread.start()
    if COMM.rank == 0:
        # While another thread is in the start, which waits for rank 1.
        assert not world.is_started()
        fork_a_child()
    for thread in starters:
        thread.join()
    assert len(found) == 4 and all(each is found[0] for each in found)
    world.barrier()
    tell("has started")


def fork_a_child():
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            assert not world.is_started()
            world.init()
        except RuntimeError as error:
            os._exit(0 if "is a worker" in str(error) else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status


def nested():
    import mpi

    assert not launched_process.is_worker()
    assert world.size() == 2
    inside = os.environ.get("EASYDDL_TEST_INSIDE_OF")
    if inside is None:
        line = mpi.command(2, [sys.executable, *sys.argv])
        job = {**os.environ, "EASYDDL_TEST_INSIDE_OF": str(world.rank())}
        subprocess.run(line, env=job, check=True, timeout=60)
    # A worker, as spawned: it inherits the environment, and no descriptors.
    worker = subprocess.run([sys.executable, __file__, "worker"], timeout=60)
    assert worker.returncode == 0
    world.barrier()
    tell(f"rank {world.rank()} of 2 inside of {inside}")


def worker():
    assert launched_process.is_worker()


globals()[HOW]()
