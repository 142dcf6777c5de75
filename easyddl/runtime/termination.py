"""Signals that ask this process to end, such as those of a scheduler that preempts a job."""

import contextlib
import importlib
import os
import signal
import sys
import threading
import time

from easyddl.compat import patches
from easyddl.machine import processes

# Seconds. A scheduler and a launcher may both forward the same request to end, so that a process
# receives its signal several times within a moment. A signal after this time is a second request.
ONE_REQUEST = 3.0

# The signal mask of a thread that forks. Otherwise a signal could end the child, or Python drop it,
# before the child has left it to its parent.
_mask = threading.local()


def _core():
    return importlib.import_module("easyddl._core")


def _block():
    with contextlib.suppress(ImportError):  # the start of easyddl tells why
        _core()  # forked children share its memory
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, processes.SIGNALS)


def _restore_mask():
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)


def _begin_child():
    _leave_to_parent()
    loaders = sys.modules.get("torch.utils.data._utils.signal_handling")
    with contextlib.suppress(AttributeError):  # a later PyTorch has another name for it
        if loaders is not None:
            patches.install(loaders, "_set_worker_signal_handlers", _leaving_to_parent)
    _restore_mask()


def _leave_to_parent():
    """Makes this child outlast the signals that its parent records."""
    with contextlib.suppress(ImportError):
        _core().leave_signals_to_parent(processes.SIGNALS)


def _leaving_to_parent(set_handlers):
    def set_all():
        set_handlers()
        _leave_to_parent()

    return set_all


os.register_at_fork(before=_block, after_in_parent=_restore_mask, after_in_child=_begin_child)

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
        self._process = os.getpid()
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
        for number in self._numbers:
            previous = signal.getsignal(number)
            if previous in _ending_handlers:
                self._watched.append((number, previous))
                signal.signal(number, self._record)
                _core().record_signal(number, True)

    def stop_watching(self):
        """Restores the handlers. Call it in the thread that called `watch`."""
        while self._watched:
            number, previous = self._watched.pop()
            if signal.getsignal(number) == self._record:  # the script has not replaced it
                signal.signal(number, previous)
            _core().record_signal(number, False)

    def _record(self, number, frame):
        now = time.monotonic()
        if os.getpid() != self._process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not self.received:
            self.received, self._time = int(number), now
        elif now - self._time > ONE_REQUEST:
            self.stop_watching()
            os.kill(os.getpid(), number)
