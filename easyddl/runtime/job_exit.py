"""The end of a job: an error on one rank ends all ranks, and its message names the rank."""

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import time

from easyddl.runtime import deadlines, launcher, mpi_library, world

_all_end_together = False  # whether `end_together` has been called


def _flush():
    for stream in (sys.stdout, sys.stderr):
        # The script may have closed or replaced a stream, which then holds no output.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _end_job(previous, kind, error, traceback):
    """Prints an error that nobody caught, and ends all ranks.

    Args:
        previous: The exception hook that prints the traceback.
        kind: The class of the error.
        error: The exception.
        traceback: Its traceback.
    """
    interrupted = issubclass(kind, KeyboardInterrupt)
    if not interrupted or world.is_root():
        previous(kind, error, traceback)
    if not interrupted:
        # One write for the whole line, because `print` makes several, and the lines of different
        # ranks would mix.
        reason = f"{kind.__name__}: {error}".splitlines()[0]
        line = f"easyddl: rank {world.rank()} on host {world.host()} failed: {reason}\n"
        sys.stderr.write(line)
    _flush()
    world.end_job(130 if interrupted else 1)


def _end_before_start(kind, error):
    """Ends the job after an error of a rank that has not started easyddl."""
    sys.stderr.write(
        f"easyddl: rank {launcher.rank()} on host {os.uname().nodename} failed before easyddl "
        f"had started: {kind.__name__}: {error}\n"
    )
    _flush()
    time.sleep(0.5)  # an abort may cut off the message before the launcher has printed it
    mpi_library.abort(1)
    if launcher.is_supervised():  # `easyddl run` ends the other ranks
        os._exit(1)
    # MPICH's launcher waits forever for a process that exits before it initializes MPI. Every
    # launcher ends the job when a signal kills a process.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def end_together():
    """Makes this rank's exit with a status other than 0 an orderly end of the job.

    All ranks must call it, and exit soon. Otherwise such an exit aborts the job, because the other
    ranks may wait for this one.
    """
    global _all_end_together
    _all_end_together = True


def _finish_at_exit():
    """Starts easyddl on a rank that has not used it, because the others wait in their start."""
    if launcher.is_rank_of_several() and not world.is_started():
        try:
            world.init()
        except BaseException as error:
            # Python ignores the exceptions of exit handlers, and other ranks may wait in the start.
            _end_before_start(type(error), error)
    if world.is_started():
        world.stop_signals()
        # The GPU driver may shut down before MPI is finalized, so this cannot wait until then.
        world.finish()
        if _all_end_together:
            mpi_library.finalize()


@contextlib.contextmanager
def bounded_end():
    """Limits the time for which an orderly end after an error waits for other ranks.

    The other ranks may themselves wait for this rank. So the job ends with the error if the body
    still runs EASYDDL_STALL_WARN seconds after the error.

    Yields:
        Function of the exception. Call it when the error is raised: it starts the time limit.
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


@functools.cache
def install():
    """Makes an exception that nobody catches print its traceback and end all ranks."""
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
    atexit.register(_finish_at_exit)


def uninstall():
    """Leaves out the end of the job at exit. For a rank for which no other rank waits."""
    atexit.unregister(_finish_at_exit)
