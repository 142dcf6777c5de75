"""The end of a job: an error on one rank ends all ranks, and its message names the rank."""

import atexit
import contextlib
import functools
import io
import os
import re
import select
import signal
import sys
import time

from easyddl.hosts import launched_process
from easyddl.runtime import (
    console,
    entry_point,
    mpi_library,
    settled_errors,
    shared_error,
    world,
)


def _flush():
    for stream in (sys.stdout, sys.stderr):
        # The script may have closed or replaced a stream, which then holds no output.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _end_job(previous, kind, error, traceback):
    """Prints an uncaught error, and ends all ranks.

    Args:
        previous: The exception hook that prints the traceback.
        kind: The class of the error.
        error: The exception.
        traceback: Its traceback.
    """
    interrupted = issubclass(kind, KeyboardInterrupt)
    try:
        if not interrupted:
            if _repeats_another_rank(error):
                shared_error.wait_for_first()
            place = f"rank {world.rank()} on host {world.host()} failed"
            _print_once(_printed_by(previous, kind, error, traceback), place, error)
        elif world.is_root():
            _write(world.own_warnings() + _printed_by(previous, kind, error, traceback))
        _flush()
    finally:  # even after Ctrl-C, because the other ranks wait
        world.engine().core.end_job(130 if interrupted else 1)


def _repeats_another_rank(error):
    """Returns whether an error only says what failed on another rank, which may print that itself.

    The text is that of the engine, which frameworks pass on in errors of their own.
    """
    failed = re.search(
        r"A collective failed part-way on rank (\d+)", settled_errors.describe(error)
    )
    return failed is not None and int(failed[1]) != world.rank()


def _end_before_start(text, error):
    """Prints an error of a rank that has not started easyddl, and ends the job.

    Args:
        text: String. The output of the exception hook.
        error: The exception.
    """
    name = os.uname().nodename
    place = f"rank {launched_process.rank()} on host {name} failed before easyddl had started"
    _print_once(text, place, error)
    _flush()
    time.sleep(0.5)  # after an abort, the launcher may not print a message that it still holds
    mpi_library.abort(1)
    if launched_process.may_exit():
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _printed_by(hook, kind, error, traceback):
    """Returns the output of an exception hook, to print it in one piece.

    Python's hook writes each line separately, so the lines of different ranks would mix.
    """
    printed = io.StringIO()
    with contextlib.redirect_stderr(printed):
        hook(kind, error, traceback)
    if kind.__name__ == "BdbQuit" and _is_input_at_end():
        printed.write(
            "`breakpoint()` has met the end of standard input on this rank. The launcher may pass "
            "it to rank 0 alone: call `breakpoint()` there, and start the job from a terminal.\n"
        )
    return printed.getvalue()


def _is_input_at_end():
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the script has closed it
        return bool(select.select([sys.stdin], [], [], 0)[0]) and not sys.stdin.read(1)
    return False


def _print_once(text, place, error):
    """Prints an error of this rank, unless another rank of the host prints the same error.

    Args:
        text: String. The output of the exception hook.
        place: String that says which rank failed, and when.
        error: The exception.
    """
    message = settled_errors.describe(error)
    shared = shared_error.SharedError(text + message)
    if shared.is_printed_by_another():
        shared_error.wait_for_first()
        return
    lines = f"easyddl: {place}: {message}".splitlines()
    # `easyddl run` prints the whole message, and expects one line here.
    if launched_process.is_supervised():
        lines = lines[:1]
    summary = "\n".join(f"    {line}".rstrip() for line in lines).strip()
    _write(f"{world.own_warnings()}{text}{summary}\n")
    others = shared.other_ranks()
    if others:
        _write(f"easyddl: {console.ranks(others)} failed with the same error\n")


def _write(text):
    """Writes to standard error in one piece, so that the lines of different ranks do not mix."""
    # The exception hook of torch.distributed calls this one to print what it has collected, but the
    # job has ended by then.
    stream = sys.__stderr__ if isinstance(sys.stderr, io.StringIO) else sys.stderr
    with contextlib.suppress(OSError, ValueError, AttributeError):  # the script has closed it
        stream.write(text)
        stream.flush()


def end_together():
    """Makes an exit with a status other than 0 an orderly end of the job, not an abort.

    All ranks must call it, and exit soon after. Without it such an exit of one rank aborts the job,
    because the other ranks may wait for this one.
    """
    world.engine().ends_together = True


def _finish_at_exit():
    """Ends easyddl. Starts it first on a rank that has not used it, for which others may wait.

    A program that has only imported easyddl leaves MPI to a later program of the rank.
    """
    is_last = launched_process.is_started_by_launcher() and not entry_point.is_light()
    may_start = not world.is_started() and (is_last or mpi_library.is_loaded())
    if launched_process.is_rank_of_several() and may_start:
        try:
            world.init()
        except BaseException as error:
            # Python ignores the exceptions of exit handlers, and other ranks may wait in the start.
            _end_before_start("", error)
    if world.is_started():
        world.pass_warnings_on()
        engine = world.engine()
        engine.core.stop_signals()
        # The GPU driver may shut down before MPI is finalized, so this cannot wait until then.
        engine.world.finish()
        if engine.ends_together:
            mpi_library.finalize()


@functools.cache
def install():
    """Makes an uncaught exception print its traceback and end all ranks."""
    previous = sys.excepthook

    def hook(kind, error, traceback):
        if launched_process.is_worker():
            previous(kind, error, traceback)
        elif world.is_started() and world.size() > 1:
            _end_job(previous, kind, error, traceback)
        elif launched_process.is_rank_of_several() and not world.is_started():
            _end_before_start(_printed_by(previous, kind, error, traceback), error)
        else:
            previous(kind, error, traceback)

    sys.excepthook = hook
    atexit.register(_finish_at_exit)


def uninstall():
    """Removes the exit handler, for a rank for which no other rank waits."""
    atexit.unregister(_finish_at_exit)
