"""A rank runs out of memory in the middle of a call, and all ranks hear of it and go on."""

import faulthandler
import os
import re
import signal

import without_keras  # noqa: F401  (first)

# isort: split
import numpy as np
from mpi import run_checks
from planted import Allocations

import easyddl as ddl
from easyddl.collectives import arrays

ALLOCATIONS = Allocations()
RANK, SIZE = ddl.rank(), ddl.size()

# More rows on higher ranks; several chunks of data, and few.
ROWS = [np.full((rows, 3), rank, np.float32) for rank, rows in enumerate((70_001, 5, 300_007))]
OBJECTS = [["x" * 100_000], {"rank": 1}, None]


def allgather():
    np.testing.assert_array_equal(ddl.allgather(ROWS[RANK]), np.concatenate(ROWS[:SIZE]))


def alltoall():
    # Each keeps nothing, and deals all that it has to the next.
    splits = [0] * SIZE
    splits[(RANK + 1) % SIZE] = len(ROWS[RANK])
    received = ddl.alltoall(ROWS[RANK], splits)
    np.testing.assert_array_equal(received, ROWS[(RANK - 1) % SIZE])


def allgather_object():
    assert ddl.allgather_object(OBJECTS[RANK]) == OBJECTS[:SIZE]


def broadcast_object():
    assert ddl.broadcast_object(OBJECTS[RANK], 1) == OBJECTS[1]


def allreduce():
    rank = np.full(200_003, RANK, np.float32)
    assert (ddl.allreduce(rank, "sum") == sum(range(SIZE))).all()


def reduce_scatter():
    rank = np.full(SIZE * 100_003, RANK, np.int32)
    assert (ddl.reduce_scatter(rank) == sum(range(SIZE))).all()


def assert_all_hear(call, victim):
    """One rank's allocation fails in a call, all raise, and the same call works right after."""
    if victim == RANK:
        ALLOCATIONS.plant()
    error = None
    try:
        call()
    except (MemoryError, RuntimeError) as problem:
        error = problem
    has_failed = ALLOCATIONS.end()
    if victim == RANK:
        assert has_failed, f"{call.__name__} has not come to its allocation"
        assert error is not None
    else:
        assert isinstance(error, RuntimeError), error
        assert re.search(rf"(?i)\brank {victim}\b", str(error)), error
        assert "memory" in str(error).lower(), error
    for _ in range(2):
        call()


def check_allgather_object():
    assert_all_hear(allgather_object, 0)


def check_allgather():
    assert_all_hear(allgather, 0)
    assert_all_hear(allgather, SIZE - 1)


def check_alltoall():
    assert_all_hear(alltoall, 0)


def check_others():
    for call in (broadcast_object, allreduce, reduce_scatter):
        assert_all_hear(call, 0)


def check_a_handler_that_runs_between_the_halves():
    heard = []

    def save_now(*_):
        try:
            ddl.barrier()
        except RuntimeError as error:
            heard.append(str(error))

    before = signal.signal(signal.SIGUSR1, save_now)
    make_room = arrays.row_allocator

    def interrupted(*arguments):
        result, allocate = make_room(*arguments)

        def allocate_after_signal(counts):
            os.kill(os.getpid(), signal.SIGUSR1)
            return allocate(counts)

        return result, allocate_after_signal

    if RANK == 0:
        arrays.row_allocator = interrupted
    try:
        for call in (allgather, alltoall):
            call()
    finally:
        arrays.row_allocator = make_room
        signal.signal(signal.SIGUSR1, before)
    assert len(heard) == (2 if RANK == 0 else 0), heard
    assert all("A handler must not call collectives" in text for text in heard), heard
    allgather()


def check_on_all_ranks():
    for call in (allgather, allgather_object):
        ALLOCATIONS.plant()
        try:
            call()
        except (MemoryError, RuntimeError):
            assert ALLOCATIONS.end()
        else:
            raise AssertionError("no error")
        call()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(60, exit=True)  # of a rank that hangs
    run_checks(globals())
