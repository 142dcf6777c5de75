"""The engine of this process, started at first use."""

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

from easyddl.hosts import launched_process
from easyddl.runtime import entry_point
from easyddl.runtime.engine_start import Engine, start

_engine: Engine | None = None
_failure: Exception | None = None  # the error of the start, which must not be repeated
_is_starting = False
_lock = threading.RLock()  # held while the engine starts
_at_start: list[Callable[[Any], object]] = []
_process = os.getpid()  # a forked child has another id


def _renew_lock():
    """Replaces the lock in a forked child, because another thread may have held it at the fork."""
    global _lock, _is_starting
    _lock = threading.RLock()
    _is_starting = False


os.register_at_fork(after_in_child=_renew_lock)


def is_started() -> bool:
    """Returns whether the engine has started in this process. False in a forked child."""
    return _of_this_process() is not None


def _of_this_process():
    return _engine if os.getpid() == _process else None


def engine() -> Engine:
    """Returns the engine of this process. The first call starts it; other threads wait meanwhile.

    Raises:
        RuntimeError: If the start fails or has failed, or if this process is not a rank.
    """
    started = _of_this_process()
    if started is not None:
        return started
    _check_process()
    with _lock:
        return _of_this_process() or _start_once()


def _start_once():
    global _engine, _failure, _is_starting
    if _failure is not None:
        raise _failure.with_traceback(None)  # the traceback would grow with every call
    if _is_starting:
        raise RuntimeError("A signal handler cannot use easyddl while easyddl starts.")
    _is_starting = True
    try:
        started = start()
        if started.world.size > 1:
            entry_point.become_rank()
        for act in _at_start:
            act(started.world)
        _engine = started
    except Exception as error:
        _failure = error
        raise
    except BaseException as error:
        _failure = RuntimeError(
            f"{type(error).__name__} interrupted the start of easyddl, which cannot be repeated in "
            "this process."
        )
        raise
    finally:
        _is_starting = False
    return _engine


def at_start(act):
    """Calls a function when the ranks are known: in the start, or now if easyddl has started.

    A script may call `ddl.rank()`, which starts easyddl, before it imports Keras, whose backend
    registers such functions. If another thread is starting easyddl, this waits for the start.

    Args:
        act: Function of `_core.World`.
    """
    with _lock:
        started = _of_this_process()
        if started is None:
            _at_start.append(act)
        else:
            act(started.world)


def _check_process():
    if launched_process.is_worker() or os.getpid() != _process:
        raise RuntimeError(
            "This process is a worker that a rank started, for example to load data, and not a "
            "rank. Ranks and collectives of easyddl are not available in a worker. Call them "
            "before the worker starts, and pass the results to the worker."
        )


@contextlib.contextmanager
def activity(text):
    """Returns a context in which the ranks that wait for this rank have no deadline.

    These ranks print the activity of this rank, and do not end the job. Activities nest; the
    innermost one is printed.

    Args:
        text: String. The activity, such as "validation".
    """
    activities = engine().activities
    try:
        activities.append(text)
        engine().world.set_activity(text)
        yield
    finally:
        if text in activities:
            activities.remove(text)
        engine().world.set_activity(activities[-1] if activities else "")


def end_activities():
    """Ends all activities, after an error that may have interrupted the end of one."""
    engine().activities.clear()
    engine().world.set_activity("")
