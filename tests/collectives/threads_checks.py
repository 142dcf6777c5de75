"""Threads of one rank that call collectives."""

import _thread
import concurrent.futures
import re
import signal
import threading
import time

import keras
import numpy as np
from line_errors import renew_communicator
from mpi import run_checks
from mpi4py import MPI
from ranks import error_of
from steps import BACKEND

import easyddl as ddl
from easyddl.collectives import arrays
from easyddl.compat import patches
from easyddl.runtime import engine

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


def assert_usable():
    assert ddl.allreduce(RANK, "sum") == sum(range(SIZE))


def is_refused(error, name):
    """Whether an error is that of a call in a thread of this name, or of a pool of this name."""
    call = re.escape("called allreduce(x: int64 of shape (3,), op='sum'), but the thread")
    return re.search(rf"the thread '{re.escape(name)}(_\d)?' {call}", str(error)) is not None


def assert_refused(errors, name):
    """All ranks have an error that names a rank and a thread, and then no collective works."""
    assert all(is_refused(error, name) for error in errors), errors
    everyones = COMM.allgather(len(errors))
    assert all(everyones), everyones
    try:
        ddl.barrier()
    except RuntimeError as error:
        assert "On rank " in str(error) and is_refused(error, name), error
        assert "ddl.collectives_in(thread)" in str(error), error
    else:
        raise AssertionError("no error")
    renew_communicator()


def in_pool(name):
    """Jobs of which each rank's two workers take whichever is next."""
    with concurrent.futures.ThreadPoolExecutor(2, name) as pool:
        callers = [Caller(1), Caller(2)]
        for caller in callers if RANK % 2 == 0 else reversed(callers):
            pool.submit(caller.run)
    return callers


def in_raw_threads(name):
    """Threads that Python's `threading` has not started, as those of a framework."""
    callers, done = [Caller(1), Caller(2)], threading.Semaphore(0)

    def run(caller):
        threading.current_thread().name = f"{name}_0"
        caller.run()
        done.release()

    for caller in callers:
        _thread.start_new_thread(run, (caller,))
    for _ in callers:
        done.acquire()
    return callers


def check_other_threads_are_refused_on_all_ranks():
    if SIZE == 1:
        return
    for start in (in_pool, in_raw_threads):
        for number in range(10):
            COMM.Barrier()
            name = f"{start.__name__}{number}"
            callers = start(name)
            assert not any(each.wrong for each in callers), [each.wrong for each in callers]
            errors = [each.error for each in callers]
            assert all(f"On rank {RANK} the thread '{name}_" in str(error) for error in errors)
            assert_refused(errors, name)  # which of the two threads was first differs by rank


def check_a_thread_beside_the_main_one_is_refused_on_all_ranks():
    if SIZE == 1:
        return
    for number in range(10):
        beside, caller = Caller(1, f"beside{number}"), Caller(2)
        COMM.Barrier()
        beside.start()
        caller.run()
        beside.join()
        assert beside.wrong is None and caller.wrong is None, (beside.wrong, caller.wrong)
        assert_refused([beside.error], beside.name)


def check_a_call_on_one_rank_ends_the_waits_of_all():
    if SIZE == 1:
        return
    thread = Caller(1, "alone")
    if RANK == SIZE - 1:
        thread.start()
        thread.join()
        assert is_refused(thread.error, "alone"), thread.error
    try:
        ddl.barrier()
    except RuntimeError as error:
        assert f"On rank {SIZE - 1} " in str(error) and is_refused(error, "alone"), error
    else:
        raise AssertionError("no error")
    renew_communicator()


def check_the_call_of_the_user_is_named():
    if SIZE == 1:
        return

    def first():
        with ddl.root_first():
            pass

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        text = error_of(RuntimeError, lambda: pool.submit(first).result())
    assert "called root_first() (in broadcast_object(root_rank=0)), but the thread" in text, text
    renew_communicator()


def check_calls_in_threads_of_tensorflow_are_refused_on_all_ranks():
    if SIZE == 1 or BACKEND != "tensorflow":
        return
    import tensorflow as tf

    @tf.function
    def add_up(x):
        return tf.numpy_function(lambda x: ddl.allreduce(x, "sum"), [x], tf.int64)

    text = error_of(tf.errors.UnknownError, lambda: add_up(np.full(3, RANK)))
    assert f"On rank {RANK} the thread 'Dummy-" in text, text
    text = error_of(RuntimeError, ddl.barrier)
    assert "called allreduce(" in text and "ddl.collectives_in(thread)" in text, text
    renew_communicator()


class Recorder(keras.optimizers.SGD):
    """Keeps the gradients with which it would update variables."""

    def __init__(self):
        super().__init__(1.0)
        self.seen = []

    def update_step(self, gradient, variable, learning_rate):
        self.seen.append(np.array(keras.ops.convert_to_numpy(gradient)))


def check_threads_that_update_by_one_optimizer_are_refused_on_all_ranks():
    """In eager steps. A compiled step enters no Python that could tell its thread."""
    if SIZE == 1 or BACKEND == "jax":
        return
    variables = [keras.Variable(np.zeros(5, "float32")) for _ in range(3)]
    optimizer = ddl.DistributedOptimizer(Recorder())
    optimizer.build(variables)

    def update(value):
        gradient = keras.ops.convert_to_tensor(np.full(5, value + RANK, "float32"))
        optimizer.apply([gradient] * len(variables), variables)

    update(0)  # registers the gradients
    errors = []

    def update_often(number):
        try:
            for step in range(CALLS):
                update(1000 * number + step)
        except RuntimeError as error:
            errors.append(str(error))

    optimizer.seen.clear()
    threads = [threading.Thread(target=update_often, args=(number,)) for number in (1, 2)]
    for thread in threads if RANK % 2 == 0 else reversed(threads):
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2 and not optimizer.seen, (errors, optimizer.seen)
    assert all("called the update of an optimizer, but the thread" in text for text in errors)
    text = error_of(RuntimeError, ddl.barrier)
    assert "ddl.collectives_in(thread)" in text, text
    renew_communicator()


def check_a_thread_that_is_lent_the_collectives_updates():
    if BACKEND == "jax":
        return
    variable = keras.Variable(np.zeros(5, "float32"))
    optimizer = ddl.DistributedOptimizer(Recorder())
    optimizer.build([variable])

    def update():
        for step in range(10):
            gradient = keras.ops.convert_to_tensor(np.full(5, 10.0 * step + RANK, "float32"))
            optimizer.apply([gradient], [variable])

    thread = threading.Thread(target=update)
    with ddl.collectives_in(thread):
        thread.start()
    means = [mean.tolist() for mean in optimizer.seen]
    assert means == [[10.0 * step + (SIZE - 1) / 2] * 5 for step in range(10)]


def check_threads_that_are_lent_the_collectives():
    for name in (None, f"rank {RANK}"):  # Python's names may differ by rank
        caller = Caller(1, name)
        with ddl.collectives_in(caller):
            caller.start()
        assert not caller.is_alive()  # the end of the body has waited
        assert caller.error is None and caller.wrong is None, (caller.error, caller.wrong)
        assert_usable()


def check_the_lender_is_refused():
    if SIZE == 1:
        return
    borrower = threading.Thread(target=lambda: None, name="borrower")
    with ddl.collectives_in(borrower):
        errors = [error_of(RuntimeError, lambda: ddl.allreduce(np.full(3, RANK), "sum"))]
    assert "but the thread 'borrower' calls the collectives" in str(errors[0])
    assert_refused(errors, threading.main_thread().name)
    assert_usable()


def check_an_error_beside_a_thread_that_waits():
    """One rank's own error ends the wait of the thread on all ranks, and reaches the script."""
    if SIZE == 1:
        return
    caller = Caller(1) if RANK == 0 else threading.Thread(target=COMM.recv)
    try:
        with ddl.collectives_in(caller):
            caller.start()
            if RANK == 0:
                raise KeyError("on purpose")
    except KeyError:
        assert RANK == 0 and "on purpose" in str(caller.error), caller.error
        for rank in range(1, SIZE):
            COMM.send(None, rank)
    error = error_of(RuntimeError, ddl.barrier)
    assert "the body of collectives_in() was given up by KeyError: 'on purpose'" in error, error
    renew_communicator()


def check_what_cannot_be_lent_the_collectives():
    ended = threading.Thread(target=lambda: None)
    ended.start()
    ended.join()
    for wrong in (ended, threading.current_thread()):
        assert "`thread` must be another thread" in error_of(
            ValueError, lambda wrong=wrong: ddl.collectives_in(wrong)
        )
    assert "Received: thread of type int" in error_of(TypeError, lambda: ddl.collectives_in(1))
    assert_usable()


def check_a_communicator_of_the_threads_own():
    """As the message advises: mpi4py's."""
    own, found = COMM.Dup(), []

    def exchange():
        found.extend(own.allreduce(number + RANK) for number in range(CALLS))

    thread = threading.Thread(target=exchange)
    thread.start()
    for _ in range(CALLS):
        assert_usable()
    thread.join()
    assert found == [SIZE * number + sum(range(SIZE)) for number in range(CALLS)]
    own.Free()


def check_a_signal_is_heard_while_another_thread_is_in_a_collective():
    """The others come to that collective only when the main thread has got its signal."""
    if SIZE == 1:
        return
    failed = []

    def call_engine():  # Python refuses the collectives of a second thread
        try:
            barrier = engine.engine().communicator.barrier
            barrier(engine.engine().core.Fingerprint("a thread's call"))
        except RuntimeError as error:
            failed.append(str(error))

    if RANK == 0:
        errors = []
        caller = threading.Thread(target=call_engine)
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
        assert "on purpose" in failed[0], failed
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


if __name__ == "__main__":
    run_checks(globals())
