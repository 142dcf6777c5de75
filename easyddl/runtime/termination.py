"""Signals that ask this process to end, such as those of a scheduler that preempts a job."""

import ctypes
import functools
import mmap
import os
import signal
import threading
import time
from multiprocessing import process as multiprocessing_process

from easyddl.compat import patches
from easyddl.machine import processes

# Seconds. A scheduler and a launcher may both forward the same request to end, so that a process
# receives its signal several times within a moment. A signal after this time is a second request.
ONE_REQUEST = 3.0

# Forked children share this memory.
_shared = mmap.mmap(-1, mmap.PAGESIZE)

# The id of the process that records signals; 0 for none.
_recorder = ctypes.c_int.from_buffer(_shared)

# The ids of children that their parent has ended, each at its remainder by the length.
_ended = (ctypes.c_int * 1021).from_buffer(_shared, ctypes.sizeof(_recorder))

# The signal mask of a thread that forks. Python drops signals that a child receives while it forks,
# if they have handlers. A blocked signal stays pending instead.
_mask = threading.local()


def _block():
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])


def _restore_mask():
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


os.register_at_fork(before=_block, after_in_parent=_restore_mask, after_in_child=_restore_mask)

# Handlers that end the process. `act_before_sigterm` adds its own.
_ending_handlers = [signal.SIG_DFL, signal.default_int_handler]


def numbers_of(names):
    """Returns the numbers of signals.

    Args:
        names: Sequence of names of signals, such as `("SIGTERM", "SIGUSR1")`.

    Raises:
        ValueError: If a name is not that of a signal by which a scheduler may end a process.
    """
    # `easyddl run` passes on no others.
    known = {each.name: each for each in signal.Signals if each in processes.SIGNALS}
    is_list = isinstance(names, list | tuple)
    if not is_list or not all(isinstance(name, str) and name in known for name in names):
        raise ValueError(
            f"`signals` must be a tuple of names among {', '.join(known)}, such as "
            f'("SIGTERM", "SIGUSR1"), or () for none. Received: signals={names!r}'
        )
    return [known[name] for name in names]


def act_before_sigterm(act):
    """Calls a function before SIGTERM ends this process, unless the script handles the signal.

    The process ends by the signal as it would without the function. Forked children do not call
    it. Outside of the main thread, which alone can set handlers, this does nothing. While the main
    thread is in a call into C, such as `MPI.COMM_WORLD.Barrier`, the signal waits for its end.

    Args:
        act: Function without arguments. It may interrupt any code of the main thread.
    """
    process = os.getpid()

    def end(number, frame):
        signal.signal(number, signal.SIG_DFL)
        try:
            if os.getpid() == process:
                act()
        finally:
            os.kill(os.getpid(), number)

    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        _ending_handlers.append(end)
        signal.signal(signal.SIGTERM, end)


def is_of_recorder():
    """Returns whether this process was forked by one that records signals now.

    A launcher or a scheduler signals all processes. A rank that records the signal may need its
    workers until it has saved a backup, so they ignore it. A worker that the rank itself ends by
    `Process.terminate`, as `Pool` does, must not ignore that.
    """
    process = os.getpid()
    return _recorder.value == os.getppid() and _ended[process % len(_ended)] != process


def _telling_child(terminate):
    @functools.wraps(terminate)
    def tell(child):
        _ended[child.pid % len(_ended)] = child.pid
        terminate(child)

    return tell


class TerminationSignals:
    """Records signals that would otherwise end the process.

    A second request has the effect that it would have without this class: it ends the process.

    Args:
        numbers: List of `signal.Signals`.

    Attributes:
        received: Integer. The first signal that was received; 0 if none was.
    """

    def __init__(self, numbers):
        self._numbers = numbers
        self._watched = []
        self._time = 0.0
        self.received = 0

    def watch(self):
        """Begins to record the signals.

        A signal for which the script has a handler is not recorded. Outside of the main thread this
        does nothing, because only the main thread can set handlers.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        patches.install(multiprocessing_process.BaseProcess, "terminate", _telling_child)
        for number in self._numbers:
            previous = signal.getsignal(number)
            if previous in _ending_handlers:
                self._watched.append((number, previous))
                signal.signal(number, self._record)
                _recorder.value = os.getpid()

    def stop_watching(self):
        """Restores the handlers. Call it in the thread that called `watch`."""
        while self._watched:
            number, previous = self._watched.pop()
            if signal.getsignal(number) == self._record:  # the script has not replaced it
                signal.signal(number, previous)
            _recorder.value = 0

    def _record(self, number, frame):
        now = time.monotonic()
        if os.getpid() != _recorder.value:
            if not is_of_recorder():
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
        elif not self.received:
            self.received, self._time = int(number), now
        elif now - self._time > ONE_REQUEST:
            self.stop_watching()
            os.kill(os.getpid(), number)
