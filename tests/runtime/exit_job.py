"""A job that ends in the way that the command line says, without Keras.

Usage: exit_job.py HOW [HOW_MANY_THREADS]
"""

import os
import pathlib
import signal
import sys
import threading
import time

import engine_only  # noqa: F401  (first)
import numpy as np
from telling import tell

from easyddl.runtime import world


def add_up(number, what="the sum"):
    """The sum of `number` over all ranks."""
    numbers = np.full(3, number, "float32").view("uint8")
    total = np.empty_like(numbers)
    engine = world.engine()
    # Not `world.fingerprint`, which refuses threads other than the main one.
    fingerprint = engine.core.Fingerprint(what)
    engine.communicator.allreduce([numbers], [total], "float32", "sum", fingerprint)
    assert np.all(total.view("float32") == total.view("float32")[0])
    return float(total.view("float32")[0])


def interrupt_main_thread(seconds=0.5):
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGUSR1)).start()


def wait_for_rank_1():
    """A collective in which all others wait for a while; one of them is interrupted."""
    if world.rank() == 0:
        interrupt_main_thread()
    if world.rank() == 1:
        time.sleep(1.5)
    return add_up(world.rank() + 1)


def everyones_sum():
    return world.size() * (world.size() + 1) / 2


def handler_catches():
    heard = []

    def save_now(*_):
        try:
            add_up(100, "a sum in a signal handler")
        except Exception as error:
            heard.append(f"{type(error).__name__}: {error}")

    signal.signal(signal.SIGUSR1, save_now)
    assert wait_for_rank_1() == everyones_sum()
    assert add_up(1) == world.size()
    if world.rank() == 0:
        print("heard", *heard, flush=True)


def handler_does_not_catch():
    signal.signal(signal.SIGUSR1, lambda *_: add_up(100, "a sum in a signal handler"))
    try:
        wait_for_rank_1()
    finally:
        print(f"rank {world.rank()} is out", flush=True)


def daemon_thread():
    """Threads are in collectives while all ranks end."""

    def add_on():
        while True:
            add_up(1, "a sum in a daemon thread")

    add_up(1)
    threading.Thread(target=add_on, daemon=True).start()
    time.sleep(0.3)
    print("has ended", flush=True)


def daemon_thread_of_one():
    """A thread waits for ranks that have ended."""
    if world.rank() == 0:
        threading.Thread(target=add_up, args=(1,), daemon=True).start()
        time.sleep(0.2)
    print("has ended", flush=True)


def after_finalize():
    from mpi4py import MPI

    add_up(1)
    MPI.Finalize()
    try:
        add_up(1)
    except Exception as error:
        print("refused", error, flush=True)


def end_one_by_one():
    """Rank 0 comes to its end, or to MPI_Finalize, long before the others."""
    add_up(1)
    time.sleep(1.0 * (world.rank() > 0))
    if sys.argv[2] == "finalize":
        from mpi4py import MPI

        MPI.Finalize()
    print("has ended", flush=True)


def warnings_at_the_end():
    """Ranks warn before and after the start, of the same and of other things."""
    world.warn_at_end("fit", "earlier")
    world.warn_at_end("update", "withdrawn")
    world.init()
    world.warn_at_end("fit", "later")
    world.warn_at_end("update", f"of rank {world.rank()}" if sys.argv[2] == "differ" else "")


def no_thread_is_left():
    """A rank's system refuses it further threads (see `refuse_threads.c`)."""
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        os.environ["REFUSE_THREADS"] = sys.argv[2]
    add_up(1)


def no_thread_for_what_is_registered():
    """Each of them fails on all ranks, and can be made once there are threads again."""
    engine = world.engine()
    core, group = engine.core, engine.reducer_group
    makers = (
        lambda: core.Reducer(group, "gradients", [("float32", [12])]),
        lambda: core.StepSum(group, "a sum", 3),
    )
    for make in makers:
        if world.rank() == 1:
            os.environ["REFUSE_THREADS"] = "0"
        try:
            make()
        except core.Error as error:
            tell("refused", error)
        os.environ.pop("REFUSE_THREADS", None)
        made = make()
        values = np.full(3, world.rank() + 1, "float32")
        address = values.ctypes.data
        made.submit(0, [(address, address, values.nbytes)], 1.0).wait()
        tell("sum" if values[0] == everyones_sum() else "mean", values[0])
        made.close()


def registration_is_given_up():
    """One rank is interrupted before it comes to what all make together, and ends in order."""
    engine = world.engine()
    add_up(1)
    if world.rank() == 0:
        return
    try:
        engine.core.Reducer(engine.reducer_group, "gradients", [("float32", [12])])
    except engine.core.Error as error:
        tell("heard", error)
    try:
        engine.core.StepSum(engine.reducer_group, "a sum", 3)
    except engine.core.Error as error:
        tell("heard", error)


def shared_files():
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    found = {line.split()[5] for line in lines if "/dev/shm/" in line}
    return sorted(path for path in found if "mpich_shm_" in path or "sm_segment" in path)


def fail(how):
    add_up(1)
    if world.rank() == 0:
        print("files", *shared_files(), flush=True)
    add_up(1)
    if world.rank() == 1:
        how()
    time.sleep(60)


def raise_error():
    raise ValueError("on purpose")


HOW = {
    function.__name__: function
    for function in (
        handler_catches,
        handler_does_not_catch,
        daemon_thread,
        daemon_thread_of_one,
        after_finalize,
        end_one_by_one,
        warnings_at_the_end,
        no_thread_is_left,
        no_thread_for_what_is_registered,
        registration_is_given_up,
    )
}
FAILURES = {
    "raise_error": raise_error,
    "sys_exit": lambda: sys.exit(1),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}

if __name__ == "__main__":
    if sys.argv[1] in HOW:
        HOW[sys.argv[1]]()
    else:
        fail(FAILURES[sys.argv[1]])
