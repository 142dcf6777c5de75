"""One rank's failure ends the job, and says which rank it was."""

import atexit
import contextlib
import os
import signal
import sys
import threading
import time

from easyddl.runtime import deadlines, launcher, mpi_library, world


def _flush():
    for stream in (sys.stdout, sys.stderr):
        # A stream that is closed, or replaced by the script, has nothing to lose.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _end_job(previous, kind, error, traceback):
    interrupted = issubclass(kind, KeyboardInterrupt)
    if not interrupted or world.is_root():
        previous(kind, error, traceback)
    if not interrupted:
        # In one piece: the ranks' lines would mix where each print is several writes.
        reason = f"{kind.__name__}: {error}".splitlines()[0]
        line = f"easyddl: rank {world.rank()} on host {world.host()} failed: {reason}\n"
        sys.stderr.write(line)
    _flush()
    world.end_job(130 if interrupted else 1)


def _end_before_start(kind, error):
    sys.stderr.write(
        f"easyddl: rank {launcher.rank()} on host {os.uname().nodename} failed before easyddl "
        f"had started: {kind.__name__}: {error}\n"
    )
    _flush()
    time.sleep(0.5)  # for the launcher to pass that on, which an abort may cut off
    mpi_library.abort(1)
    # A launcher ends a job when a process dies by a signal, but MPICH's waits for ever where
    # one ends by itself before it has initialised MPI.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _part():
    """At exit: a rank that never needed the others must not leave them waiting for it."""
    if launcher.is_rank_of_several() and not world.is_started():
        try:
            world.init()
        except BaseException as error:
            # Nobody reads an exit handler's exceptions, and the others may wait in the start.
            _end_before_start(type(error), error)
    if world.is_started():
        world.stop_signals()
        # Now: the driver of the GPU may end before MPI does.
        world.finish()


@contextlib.contextmanager
def bounded_end():
    """Around what ends in order after an error, and may have to wait for other ranks for that.

    They may wait for this one. So after EASYDDL_STALL_WARN the job ends, with the error.

    Yields:
        Function to be called with the error, when that is on its way.
    """
    timers = []

    def begin(error):
        seconds = deadlines.warn()
        if seconds > 0:
            arguments = (sys.__excepthook__, type(error), error, error.__traceback__)
            timers.append(threading.Timer(seconds, _end_job, arguments))
            timers[-1].daemon = True
            timers[-1].start()

    try:
        yield begin
    finally:
        for timer in timers:
            timer.cancel()


def install():
    """Makes an exception that nobody catches end all ranks, with its traceback."""
    previous = sys.excepthook

    def hook(kind, error, traceback):
        if launcher.is_worker():
            previous(kind, error, traceback)
        elif world.is_started() and world.size() > 1:
            _end_job(previous, kind, error, traceback)
        else:
            previous(kind, error, traceback)
            if launcher.is_rank_of_several() and not world.is_started():
                _end_before_start(kind, error)

    sys.excepthook = hook
    atexit.register(_part)
