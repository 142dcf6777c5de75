"""Errors planted in a rank of a job, and what came of its calls. Imported after easyddl."""

import functools
import os
import pickle
import signal
import sys
import threading
import time

import campaign_plan as plan
import numpy as np


def fail():
    raise MemoryError("planted")


class Allocations:
    """Has something happen where easyddl allocates, by standing in for NumPy and pickle there."""

    NAMES = ("empty", "empty_like", "zeros", "frombuffer", "concatenate", "array", "require")
    NAMES += ("split", "dumps", "loads")

    def __init__(self):
        self._left, self._act, self._names, self._has_come = None, fail, (), False
        for module in [m for n, m in sys.modules.items() if n.split(".")[0] == "easyddl"]:
            for name, real in (("np", np), ("pickle", pickle)):
                if getattr(module, name, None) is real:
                    setattr(module, name, self._stand_in(real))

    def _stand_in(self, real):
        allocations = self

        class Library:
            def __getattr__(self, name):
                found = getattr(real, name)
                if name not in allocations.NAMES:
                    return found
                return functools.partial(allocations._call, name, found)

        return Library()

    def plant(self, number, names=NAMES, act=fail):
        """Has `act` called, once, before the allocation before which there are so many others.

        Args:
            number: Integer.
            names: Of the functions that count.
            act: Function without arguments. By default the allocation fails.
        """
        self._left, self._names, self._act, self._has_come = number, names, act, False

    def has_come(self):
        """Whether it has happened, since this was asked last."""
        has_come, self._has_come = self._has_come, False
        return has_come

    def end(self):
        """From now on nothing happens. Returns what `has_come` does."""
        self._left = None
        return self.has_come()

    def _call(self, name, function, *args, **kwargs):
        if self._left is not None and name in self._names:
            self._left -= 1
            if self._left < 0:
                self._left, self._has_come = None, True
                self._act()
        return function(*args, **kwargs)


class Interrupt:
    """A real SIGINT to this process, which raises where the script is ready to catch it."""

    def __init__(self):
        self.is_caught = self.is_late = False
        self._sent = threading.Event()
        self._timer = None
        signal.signal(signal.SIGINT, self._raise)

    def send_in(self, seconds):
        self._sent.clear()
        self._timer = threading.Timer(seconds, self.send)
        self._timer.daemon = True
        self._timer.start()

    def send(self):
        os.kill(os.getpid(), signal.SIGINT)
        self._sent.set()

    def wait(self):
        """Returns once it has been sent, if it was to be."""
        while self._timer is not None and not self._sent.is_set():
            time.sleep(0.005)
        self._timer = None

    def _raise(self, *_):
        if self.is_caught:
            self.is_caught = False
            raise KeyboardInterrupt
        self.is_late = True

    def run(self, act):
        """Calls what may be interrupted."""
        try:
            self.is_caught = True
            if self.is_late:
                self.is_late = False
                raise KeyboardInterrupt
            return act()
        finally:
            self.is_caught = False


def outcome(name, act, expected, x):
    """What came of a call, as the test reads it."""
    copy = x.copy()
    begin = time.monotonic()
    try:
        found = act()
    except (Exception, KeyboardInterrupt) as error:
        said = {"verdict": "error", "kind": type(error).__name__, "text": str(error)[:2000]}
    else:
        is_right = plan.is_equal(found, expected) and plan.is_equal(x, copy)
        said = {"verdict": "right" if is_right else "wrong"}
    return {"call": name, **said, "seconds": round(time.monotonic() - begin, 3)}
