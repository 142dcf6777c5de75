"""Measures the steps of a fit for `easyddl scaling`, and then ends the job."""

import functools
import os
import time

from easyddl import backends
from easyddl.callbacks import hooks
from easyddl.checkpoint import model_files
from easyddl.collectives import objects
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
    return measurement_request.requested() is not None


def begin(fit):
    """Measures the steps of a fit, together with earlier fits that had the same compiled step.

    Call it in a callback's `set_model`, on all ranks.

    Args:
        fit: `FitContext`.
    """
    global _latest
    if _latest is None or _latest.step is not fit.step:
        _latest = ScalingMeasurement(fit.step, *measurement_request.requested())
    _latest.watch(fit)
    # A measurement must not replace the files of a training.
    hooks.mute_writers(fit)


class ScalingMeasurement(FitEvents):
    """The measurement of a model's training steps.

    Args:
        step: `CompiledStep`.
        batches: Integer. The number of batches of a rank to measure.
        warmup: Integer. The number of batches of a rank to leave out before.

    Attributes:
        step: `CompiledStep`.
    """

    def __init__(self, step, batches, warmup):
        self.step = step
        self._batches = batches
        self._most = step.meter.steps + _PATIENCE * (batches + warmup)
        self._recorder = StepRecorder(warmup, step.meter.samples, step.meter.steps)

    def watch(self, fit):
        """Measures the steps of a fit."""

        def begin_step():
            return functools.partial(
                self._end_step, fit, fit.batches, self.step.meter.samples, self.step.meter.steps
            )

        fit.step_ends.watch(begin_step)
        fit.listeners.append(self)

    def _end_step(self, fit, place, samples, batches):
        counts = fit.join.all_had_batches(place)
        now, waited = time.perf_counter(), fit.join.waited
        self._recorder.end_step(place, now, waited, samples, batches, counts)
        if not self._is_enough():
            return
        if world.size() == 1:
            self._finish(fit, [self._recorder.steps])
        # The control word of the next step carries this request, so all ranks end after that step.
        fit.join.ask_to_stop()

    def _is_enough(self):
        """Returns whether the job can end."""
        is_late = self.step.meter.steps >= self._most
        return is_late or are_enough(self._recorder.steps, self._batches)

    def after_steps(self, fit):
        """Ends the job after an epoch's steps, if they are enough."""
        own = self._recorder.steps, self._is_enough()
        ranks, enough = zip(*objects.allgather_object(own), strict=True)
        if any(enough):
            self._finish(fit, ranks)

    def after_fit(self, fit):
        """Reports the steps of a fit that has ended by itself."""
        self._report(fit, objects.allgather_object(self._recorder.steps), None)

    def _finish(self, fit, ranks):
        with world.activity("reading batches for easyddl scaling"):
            reading = fit.data.seconds_per_batch(
                fit.model, self._batches, sum(step.seconds for step in ranks[world.rank()])
            )
        self._report(fit, ranks, reading)
        raise SystemExit(0)

    def _report(self, fit, ranks, reading):
        """Prints the measurement on the root. Collective."""
        readings = objects.allgather_object(reading)
        measured = {
            **combine(ranks, self._batches),
            "reading_seconds": None if None in readings else sum(readings) / len(readings),
            "gradient_bytes": model_files.bytes_of(fit.model.trainable_variables),
            "wire_dtype": fit.first.reduction.wire_dtype,
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
