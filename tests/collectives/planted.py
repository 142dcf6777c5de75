"""What is planted in a rank's call, and what came of the call. Imported after easyddl."""

import os
import signal
import sys
import threading
import time

import numpy as np


def fail():
    raise MemoryError("planted")


class Allocations:
    """Has something happen where easyddl makes room for results, by standing in for NumPy there."""

    NAMES = ("empty", "empty_like")

    def __init__(self):
        self._act, self._has_come = None, False
        for module in [m for n, m in sys.modules.items() if n.split(".")[0] == "easyddl"]:
            if getattr(module, "np", None) is np:
                module.np = self

    def __getattr__(self, name):
        found = getattr(np, name)
        if name not in self.NAMES:
            return found

        def allocate(*args, **kwargs):
            if self._act is not None:
                act, self._act, self._has_come = self._act, None, True
                act()
            return found(*args, **kwargs)

        return allocate

    def plant(self, act=fail):
        """Has `act` called, once, before the next allocation. By default that fails."""
        self._act, self._has_come = act, False

    def end(self):
        """From now on nothing happens. Returns whether it has happened."""
        self._act = None
        return self._has_come


class Interrupt:
    """A real SIGINT to this process, which raises where the script is ready to catch it."""

    def __init__(self):
        self._is_caught = self._is_late = False
        signal.signal(signal.SIGINT, self._raise)

    def send_in(self, seconds):
        timer = threading.Timer(seconds, self.send)
        timer.daemon = True
        timer.start()

    def send(self):
        os.kill(os.getpid(), signal.SIGINT)

    def _raise(self, *_):
        if self._is_caught:
            self._is_caught = False
            raise KeyboardInterrupt
        self._is_late = True

    def run(self, act):
        """Calls what may be interrupted."""
        try:
            self._is_caught = True
            if self._is_late:
                self._is_late = False
                raise KeyboardInterrupt
            return act()
        finally:
            self._is_caught = False


def is_equal(found, expected):
    """Whether a result is equal in type, shape and all elements."""
    if not isinstance(expected, np.ndarray):
        return type(found) is type(expected) and found == expected
    return (
        isinstance(found, np.ndarray)
        and found.dtype == expected.dtype
        and found.shape == expected.shape
        and found.tobytes() == expected.tobytes()
    )


def outcome(act, expected, x):
    """What came of a call, as the test reads it: whether its result is right, or its error."""
    copy = x.copy()
    begin = time.monotonic()
    try:
        found = act()
    except (Exception, KeyboardInterrupt) as error:
        said = {"verdict": "error", "kind": type(error).__name__, "text": str(error)[:2000]}
    else:
        is_right = is_equal(found, expected) and is_equal(x, copy)
        said = {"verdict": "right" if is_right else "wrong"}
    return {**said, "seconds": round(time.monotonic() - begin, 3)}
