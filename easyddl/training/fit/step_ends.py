"""Notices when the steps of a fit are done."""

import functools
import itertools
import time

from easyddl import backends
from easyddl.profiling import trace_file
from easyddl.runtime import world

_numbers = itertools.count()  # the numbers of the steps in the trace file, over all fits


class StepEnds:
    """Calls functions when steps of a fit are done, in the thread that runs the steps.

    Keras may call `on_train_batch_end` in several other threads at once: late, and not in the order
    of the steps. A time that is taken there is not the end of a step.

    A step may still be running when the train function returns. The thread waits for it after the
    next step has begun, so that it prepares that step meanwhile, and in `finish`.

    If the job writes trace files, each step becomes a span there, and the thread waits for each
    step at once, so that the span ends with the step.
    """

    def __init__(self):
        self._begin_hooks = []
        self._last = None  # the wait for the step that may still run, and what to call at its end
        self._begun = 0  # of the last step, in nanoseconds of the monotonic clock
        self._is_traced = trace_file.is_wanted()
        if self._is_traced:
            self.watch(lambda: self._record)

    def watch(self, begin):
        """Adds a function. Call it in a callback's `set_model`.

        Args:
            begin: Function without arguments that is called for each step when the train function
                has returned. It returns a function, which is called when this step is done.
        """
        self._begin_hooks.append(begin)

    def begin_fit(self, model):
        """Watches the steps of a model. Call it in the first callback's `on_train_begin`."""
        if not self._begin_hooks:
            return
        step = model.train_function

        @functools.wraps(step)
        def watched(*arguments):
            self._begun = time.monotonic_ns()
            result = step(*arguments)
            wait = backends.require().unfinished(result)
            ends = [begin() for begin in self._begin_hooks]
            self.finish()
            self._last = wait, ends
            if wait is None or self._is_traced:
                self.finish()
            return result

        model.train_function = watched

    def finish(self):
        """Waits for the step that may still run. Call it after the last step of an epoch."""
        if self._last is None:
            return
        (wait, ends), self._last = self._last, None
        if wait is not None:
            wait()
        for end in ends:
            end()

    def _record(self):
        """Writes a step to the trace file."""
        world.add_step(self._begun, time.monotonic_ns(), next(_numbers))
