"""Run under mpirun by test_checks.py: processes that ranks start, beside MPI."""

import atexit
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import warnings

import mpi
import numpy as np
from ranks import assert_world_works, comm

import easyddl as ddl

# Python 3.12 warns of any fork of a process that has threads, as TensorFlow's has.
warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)


def attempts():
    """What each use of easyddl raises in a worker; one line for each that does not."""
    calls = {
        "rank": ddl.rank,
        "size": ddl.size,
        "init": ddl.init,
        "barrier": ddl.barrier,
        "allreduce": lambda: ddl.allreduce(np.ones(3)),
        "broadcast_object": lambda: ddl.broadcast_object(1),
    }
    found = []
    for name, call in calls.items():
        try:
            found.append(f"{name} returned {call()!r}")
        except RuntimeError as error:
            if "is a worker that a rank started" not in str(error):
                found.append(f"{name} raised {error!r}")
    return found


def square(x):
    return x * x


def square_or_fail(x):
    if x == 3:
        raise ValueError("three")
    return x * x


def exit_with(status):
    sys.exit(status)


def fail():
    raise ValueError("a worker's own affair")


def check_collectives_in_a_forked_child():
    ddl.barrier()
    child = os.fork()
    if child == 0:
        try:
            os._exit(len(attempts()))
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert_world_works()


def check_pool_of_forked_workers():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        numbers = pool.map(square, range(10))
        assert pool.apply(attempts) == []
        try:
            pool.map(square_or_fail, range(10))
            raise AssertionError("no error")
        except ValueError as error:
            assert str(error) == "three"
    assert ddl.allreduce(sum(numbers), "sum") == 285 * ddl.size()
    assert_world_works()


def run_to_its_end(method, target, *arguments):
    process = multiprocessing.get_context(method).Process(target=target, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def check_forked_workers_that_end_badly():
    assert run_to_its_end("fork", exit_with, 1) == 1
    assert run_to_its_end("fork", fail) == 1
    assert run_to_its_end("fork", os._exit, 3) == 3
    assert run_to_its_end("fork", os.abort) == -signal.SIGABRT
    assert_world_works()


def check_forked_child_that_runs_the_exit_handlers():
    # As a script's own os.fork() does, and multiprocessing does not.
    ddl.barrier()
    for status in (0, 1):
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            atexit._run_exitfuncs()
            ctypes.CDLL(None).exit(status)
        _, ended = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(ended) == status, ended
    assert_world_works()


def check_a_forked_child_that_drops_an_optimizer():
    import keras

    optimizer = ddl.DistributedOptimizer(keras.optimizers.SGD(1.0))
    variable = keras.Variable(np.zeros(3, "float32"))
    gradient = keras.ops.ones(3) * (ddl.rank() + 1)
    optimizer.apply([gradient], [variable])
    want = -(ddl.size() + 1) / 2
    np.testing.assert_allclose(variable.numpy(), want)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        del optimizer
        gc.collect()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    optimizer.apply([gradient], [variable])
    np.testing.assert_allclose(variable.numpy(), 2 * want)


def check_spawned_workers():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(square, range(4)) == [0, 1, 4, 9]
        assert pool.apply(attempts) == []
    assert run_to_its_end("spawn", exit_with, 1) == 1
    assert_world_works()


def check_all_ranks_are_still_here():
    assert comm().allgather(ddl.rank()) == list(range(ddl.size()))
    assert_world_works()


if __name__ == "__main__":
    mpi.run_checks(globals())
