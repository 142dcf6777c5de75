"""Threads of one rank that call collectives."""

import signal
import threading
import time

import numpy as np
from line_errors import renew_communicator
from mpi import run_checks
from mpi4py import MPI

import easyddl as ddl
from easyddl.collectives import arrays
from easyddl.compat import patches

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
CALLS = 100


class Caller(threading.Thread):
    """Calls allreduce again and again, until an error comes."""

    def __init__(self, number, name=None):
        super().__init__(name=name)
        self.number, self.error, self.wrong = number, None, None

    def run(self):
        for call in range(CALLS):
            value = 1000 * self.number + call
            try:
                found = ddl.allreduce(np.full(3, value + RANK), "sum")
            except RuntimeError as error:
                self.error = error
                return
            if found[0] != SIZE * value + sum(range(SIZE)):
                self.wrong = (value, found)
            time.sleep(0.0001 * (RANK + self.number) % 0.0003)


def run_together(callers, in_main=(), alike=False):
    """Runs threads at the same time, and one caller in this thread, on all ranks.

    Args:
        callers: Threads.
        in_main: Callers for this thread.
        alike: Whether all ranks start the threads in the same order.
    """
    COMM.Barrier()
    for caller in callers if alike or RANK % 2 == 0 else reversed(callers):
        caller.start()
    for caller in in_main:
        caller.run()
    for caller in callers:
        caller.join()
    COMM.Barrier()
    wrong = [caller.wrong for caller in (*callers, *in_main) if caller.wrong is not None]
    assert not wrong, wrong


def assert_usable():
    assert ddl.allreduce(RANK, "sum") == sum(range(SIZE))


def check_one_thread_besides_the_main_one():
    for name in (None, f"rank {RANK}"):  # Python's names may differ by rank
        caller = Caller(1, name)
        run_together([caller])
        assert caller.error is None, caller.error
    assert_usable()


def check_two_threads_are_an_error_on_all_ranks():
    if SIZE == 1:
        return
    for _ in range(10):
        callers = [Caller(1, "one"), Caller(2, "other")]
        run_together(callers)
        errors = [caller.error for caller in callers if caller.error is not None]
        assert errors, "no error"
        text = str(errors[0])
        assert "while the thread" in text or "in thread 1 of those named" in text, text
        renew_communicator()


def check_two_threads_of_one_name_are_an_error_on_all_ranks():
    if SIZE == 1:
        return
    for _ in range(10):
        callers = [Caller(1), Caller(2)]
        run_together(callers, alike=True)
        assert any(caller.error is not None for caller in callers)
        renew_communicator()


def check_a_thread_beside_the_main_one_is_never_mixed_with_it():
    if SIZE == 1:
        return
    for _ in range(10):
        run_together([Caller(1)], in_main=[Caller(2)])
        renew_communicator()


def check_a_signal_is_heard_while_another_thread_is_in_a_collective():
    """The others come to that collective only when the main thread has got its signal."""
    if SIZE == 1:
        return
    if RANK == 0:
        errors = []
        caller = Caller(1)
        caller.start()
        time.sleep(0.3)  # it waits in its collective

        def alarm(number, frame):
            raise TimeoutError("on purpose")

        before = signal.signal(signal.SIGALRM, alarm)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            ddl.barrier()
        except TimeoutError as error:
            errors.append(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert errors
        COMM.bcast(None)
        caller.join()
        assert "on purpose" in str(caller.error), caller.error
    else:
        COMM.bcast(None)
    renew_communicator()
    assert_usable()


def check_an_error_that_cannot_be_printed():
    """No memory is left for its text: the collective ends on all ranks all the same."""
    if SIZE == 1:
        return

    class Unprintable(Exception):
        def __str__(self):
            raise MemoryError

    def fail(array):
        raise Unprintable

    if RANK == 0:
        undo = patches.replace(arrays, "as_bytes", fail)
    for kind in (Unprintable if RANK == 0 else RuntimeError, RuntimeError):
        try:
            ddl.allreduce(np.ones(3), "sum")
        except kind:
            if RANK == 0 and kind is Unprintable:
                undo()
        else:
            raise AssertionError("no error")
    renew_communicator()
    assert_usable()


def check_threads_in_turn():
    for number in range(3):
        caller = Caller(number)
        caller.start()
        caller.join()
        assert caller.error is None and caller.wrong is None, (caller.error, caller.wrong)


if __name__ == "__main__":
    run_checks(globals())
