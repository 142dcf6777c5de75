"""The engine of this process, started at first use."""

import os
import threading
from collections.abc import Callable
from typing import Any

from easyddl.runtime import entry_point, launcher
from easyddl.runtime.start import Engine, start

_engine: Engine | None = None
_failure: Exception | None = None  # the error of the start, which cannot be repeated
_is_starting = False
_lock = threading.RLock()  # held while the engine starts
_at_start: list[Callable[[Any], object]] = []
_process = os.getpid()  # a forked child has another id


def _renew_lock():
    """Replaces the lock in a forked child: another thread may have held it during the fork."""
    global _lock, _is_starting
    _lock = threading.RLock()
    _is_starting = False


os.register_at_fork(after_in_child=_renew_lock)


def is_started() -> bool:
    """Whether the engine has started in this process. False in a forked child."""
    return _of_this_process() is not None


def _of_this_process():
    engine = _engine
    return engine if engine is not None and engine.process == os.getpid() else None


def engine() -> Engine:
    """The engine of this process. The first call starts it; threads that call meanwhile wait.

    Raises:
        RuntimeError: If the start fails, in every call; or in a process that is not a rank.
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
        # A rank of an unknown launcher may have imported easyddl without Keras, whose backend
        # registers what the start must do.
        entry_point.load_for_script()
        started = start()
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
    """Registers a function that the start calls when the ranks are known.

    Args:
        act: Function of `_core.World`.
    """
    _at_start.append(act)


def _check_process():
    if launcher.is_worker() or os.getpid() != _process:
        raise RuntimeError(
            "This process is a worker that a rank started (a data worker, for example), and not a "
            "rank. Ranks and collectives of easyddl are not available in a worker. Call them "
            "before the worker starts, and pass the results to the worker."
        )
