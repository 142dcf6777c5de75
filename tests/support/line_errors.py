"""Errors at single lines of easyddl's own Python code, as a signal handler may raise them there."""

import dataclasses
import gc
import pathlib
import sys

import numpy as np
from mpi4py import MPI

import easyddl
from easyddl.runtime import engine, world

ROOT = str(pathlib.Path(easyddl.__path__[0])) + "/"
# The functions of settled_errors.py that call others. A signal's handler runs before such a call or
# within it, but a line's error may come between a `try` and its call.
_CALLERS = ("wrapper", "call")


class Planted(TimeoutError):
    """As the handler of an alarm would raise it: an `Exception`, not an interrupt."""


class LineErrors:
    """Counts the lines of easyddl that a call runs in this thread, or raises errors at some.

    Args:
        within: Tuple of the folders and files of the package whose lines count.
    """

    def __init__(self, within=("",)):
        self._within = tuple(ROOT + each for each in within)
        self._at, self._again = None, None
        self.lines = 0
        self.place = None  # where the error was raised

    def _of_frame(self, frame, event, argument):
        code = frame.f_code
        if not code.co_filename.startswith(self._within) or frame.f_globals is globals():
            return None
        is_caller = code.co_name in _CALLERS and code.co_filename.endswith("settled_errors.py")
        return None if is_caller else self._of_line

    def _of_line(self, frame, event, argument):
        if event == "line":
            self.lines += 1
            if self.lines == self._at:
                self.place = f"{frame.f_code.co_filename.removeprefix(ROOT)}:{frame.f_lineno}"
                raise Planted("planted")
            if self._at and self._again and self.lines == self._at + self._again:
                raise Planted("planted while the first one is dealt with")
        return self._of_line

    def run(self, call, at=None, again=None):
        """Calls a function, in which line number `at` raises an error if it comes so far.

        So does the line `again` lines later, if an integer is given.
        """
        self._at, self._again, self.lines, self.place = at, again, 0, None
        gc.disable()  # finalizers of other objects would run in the midst of the call
        sys.settrace(self._of_frame)
        try:
            return call()
        finally:
            sys.settrace(None)
            gc.enable()


def outcome(call):
    """The result of a call, or the exception that it raises."""
    try:
        return call()
    except Exception as error:
        return error


def is_right(found, expected):
    """Whether a call has raised an error, or returned what it should."""
    if isinstance(found, Exception):
        return True
    if isinstance(expected, np.ndarray):
        return isinstance(found, np.ndarray) and np.array_equal(found, expected)
    return found == expected


def renew_communicator():
    """Gives the script a communicator that no error has ended, and forgets failed updates."""
    MPI.COMM_WORLD.Barrier()
    world._failed_updates.clear()
    made = engine.engine()
    communicator = made.core.Communicator(made.world, watch_signals=True)
    group = made.core.ReducerGroup(communicator)
    engine._engine = dataclasses.replace(made, communicator=communicator, reducer_group=group)
