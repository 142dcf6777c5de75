"""Measures the steps of a fit for `easyddl scaling`, and then ends the job."""

import functools
import os
import time

from easyddl import backends
from easyddl.callbacks import hooks
from easyddl.collectives import objects
from easyddl.compat import patches
from easyddl.machine import hardware
from easyddl.profiling import measurement_request
from easyddl.profiling.step_times import StepRecorder, are_enough, combine
from easyddl.runtime import affinity, world
from easyddl.training.fit.callback_order import FitEvents

# In very short epochs few steps can be measured. The measurement ends after this multiple of the
# requested number of batches.
_PATIENCE = 4

_latest = None  # the `ScalingMeasurement` of the last fit


def is_wanted():
    """Returns whether `easyddl scaling` started this job."""
    return measurement_request.VARIABLE in os.environ


def begin(fit, callback):
    """Measures the steps of a fit, together with earlier fits that had the same compiled step.

    Call it in a callback's `set_model`, on all ranks.

    Args:
        fit: `FitContext`.
        callback: The first Keras callback of the fit. Its hook receives the begins of steps.
    """
    global _latest
    if _latest is None or _latest.step is not fit.step:
        _latest = ScalingMeasurement(fit.step, measurement_request.from_environment())
    _latest.watch(fit, callback)
    # A measurement must not replace the files of a training.
    hooks.mute_writers(fit)


class ScalingMeasurement(FitEvents):
    """The measurement of a model's training steps.

    Args:
        step: `CompiledStep`.
        request: `MeasurementRequest`.

    Attributes:
        step: `CompiledStep`.
    """

    def __init__(self, step, request):
        self.step = step
        self._request = request
        self._recorder = StepRecorder(request.warmup)
        self._first_batch = step.meter.steps
        self._number = 0  # the number in its epoch of the step that began last

    def watch(self, fit, callback):
        """Measures the steps of a fit.

        Args:
            fit: `FitContext`.
            callback: The first Keras callback of the fit.
        """
        inherited = callback.on_train_batch_begin

        def begin_step(batch, logs=None):
            self._begin_step(fit, batch // fit.model.steps_per_execution)
            inherited(batch, logs)

        fit.at_end.callback(patches.replace(callback, "on_train_batch_begin", begin_step))
        fit.step_ends.watch(lambda: functools.partial(self._end_step, fit, self._number))
        fit.listeners.append(self)

    def _begin_step(self, fit, number):
        self._number = number
        samples, batches = self.step.meter.samples, self.step.meter.steps
        self._recorder.begin_step(number, samples, batches)
        if batches - self._first_batch < self._request.steps:
            return
        steps = self._recorder.steps(samples, batches)
        if not self._is_enough(steps, batches):
            return
        if world.size() == 1:
            self._finish(fit, [steps])
        # The control word of the next step carries this request, so all ranks end after that step.
        fit.join.ask_to_stop()

    def _end_step(self, fit, number):
        now = time.perf_counter()
        if fit.join.all_had_batches((number + 1) * fit.model.steps_per_execution):
            self._recorder.end_step(number, now, fit.join.waited)

    def _is_enough(self, steps, batches):
        """Returns whether the job can end.

        Args:
            steps: List of the `Step` that have been measured.
            batches: Integer. The number of all batches so far.
        """
        most = _PATIENCE * (self._request.steps + self._request.warmup)
        return are_enough(steps, self._request.steps) or batches - self._first_batch >= most

    def _gather(self):
        """Gathers the steps of all ranks so far, and whether they are enough. Collective."""
        samples, batches = self.step.meter.samples, self.step.meter.steps
        steps = self._recorder.steps(samples, batches)
        is_enough = self._is_enough(steps, batches)
        ranks, enough = zip(*objects.allgather_object((steps, is_enough)), strict=True)
        return list(ranks), any(enough)

    def after_steps(self, fit):
        """Ends the job after an epoch's steps, if they are enough. Called on all ranks together."""
        ranks, is_enough = self._gather()
        if is_enough:
            self._finish(fit, ranks)

    def after_fit(self, fit):
        """Reports the steps of a fit that has ended by itself. Called on all ranks together."""
        ranks, is_enough = self._gather()
        if is_enough:
            self._finish(fit, ranks)
        self._report(ranks, None)

    def _finish(self, fit, ranks):
        with world.activity("reading batches for easyddl scaling"):
            reading = fit.data.seconds_per_batch(
                fit.model, self._request.steps, sum(step.seconds for step in ranks[world.rank()])
            )
        self._report(ranks, reading)
        raise SystemExit(0)

    def _report(self, ranks, reading):
        """Prints the measurement on the root. Collective."""
        readings = objects.allgather_object(reading)
        measured = {
            **combine(ranks, self._request.steps),
            "reading_seconds": None if None in readings else sum(readings) / len(readings),
            "threads": min(objects.allgather_object(_threads())),
            "hosts": _hosts(),
        }
        if world.is_root():
            # Do not use `sys.stderr`, which the script may have replaced.
            os.write(2, measurement_request.answer(measured).encode())


def _threads():
    """Returns the number of cores that an operation of this rank uses."""
    share = affinity.compute_threads()
    return min(share, backends.require().threads_of_operations() or share)


def _hosts():
    """Returns the ranks, CPU cores and GPUs of each host, as a list of dicts. Collective."""
    ranks = objects.allgather_object((world.host(), os.sched_getaffinity(0)))
    cpus = set().union(*(each for host, each in ranks if host == world.host()))
    own = hardware.usable_physical_cores(allowed=cpus), hardware.gpu_count()
    found = dict(objects.allgather_object((world.host(), own)))
    hosts = [host for host, _ in ranks]
    return [
        {"host": host, "ranks": hosts.count(host), "cores": cores, "gpus": gpus}
        for host, (cores, gpus) in found.items()
    ]
