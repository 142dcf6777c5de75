"""The durations of a job's training steps: recorded on each rank, and combined over all ranks."""

import typing

LEAST = 3  # the smallest number of steps of which a median is meaningful

_SIZES = 3  # a step of a new size counts as compiled for up to this many sizes


class Step(typing.NamedTuple):
    """A step of one rank. With `steps_per_execution`, Keras takes several batches in one step.

    Attributes:
        epoch: Integer. The number of the epoch since the recording began.
        place: Integer. The number of batches of this rank in the epoch up to the end of the step.
        seconds: Float. The time from the end of the step before it to its own end.
        waited: Float. The part of these seconds in which the rank waited for averaged gradients,
            with its own gradients all submitted. `None` if it is not measured.
        samples: Integer. The number of samples of this rank.
        batches: Integer. The number of batches of this rank.
    """

    epoch: int
    place: int
    seconds: float
    waited: float | None
    samples: int
    batches: int


class StepRecorder:
    """Records the training steps of this rank.

    The first step of an epoch is left out, because its start is not the end of another step. The
    first step with a smaller batch, such as the last one of an epoch, is left out too, because
    frameworks may compile it again.

    Args:
        warmup: Integer. The number of batches, from the first one on, that are left out.
        samples: Integer. The number of samples before the first step.
        batches: Integer. The number of batches before the first step.

    Attributes:
        steps: List of `Step`.
    """

    def __init__(self, warmup, samples=0, batches=0):
        self.steps = []
        self._counts_from = batches + warmup
        self._epoch = -1
        self._last = (-1, 0.0, None, samples, batches)  # what `end_step` got
        self._sizes = set()  # pairs of samples and batches

    def end_step(self, place, time, waited, samples, batches, counts=True):
        """Records the end of a step.

        Args:
            place: Integer. The number of batches of this rank in the epoch so far.
            time: Float, in seconds.
            waited: Float. The seconds that all steps so far have waited for averaged gradients;
                `None` if they are not measured.
            samples: Integer. The number of samples of all steps so far.
            batches: Integer. The number of batches of all steps so far.
            counts: Boolean. Whether all ranks had a batch in the step.
        """
        last_place, last_time, last_waited, last_samples, last_batches = self._last
        self._last = (place, time, waited, samples, batches)
        size = samples - last_samples, batches - last_batches
        is_first = place - size[1] != last_place
        self._epoch += is_first
        compiles = size not in self._sizes and len(self._sizes) < _SIZES
        self._sizes.add(size)
        if counts and not is_first and not compiles and last_batches >= self._counts_from:
            wait = None if None in (waited, last_waited) else waited - last_waited
            self.steps.append(Step(self._epoch, place, time - last_time, wait, *size))


def are_enough(steps, batches):
    """Returns whether a rank has at least `LEAST` steps, with at least `batches` batches."""
    return len(steps) >= LEAST and sum(step.batches for step in steps) >= batches


def combine(ranks, batches):
    """Combines the steps of all ranks.

    In each step the rank that submits its gradients last waits for the shortest time. Its wait is
    the time of the reduction itself. The additional wait of another rank is its wait for this rank.

    Args:
        ranks: List of the list of `Step` of each rank, by rank.
        batches: Integer. The number of batches of a rank after which later steps are left out.

    Returns:
        Dict with the following entries.

        - `ranks`: the number of ranks.
        - `steps`: the number of batches of each rank in the steps that all ranks measured.
        - `samples`: the samples of all ranks in these steps.
        - `seconds`: the time of these steps.
        - `step_seconds`: list of the seconds per batch of each step, as the mean over the ranks.
        - `exposed`: the share of the time in which the ranks wait for averaged gradients, as the
          mean over the ranks; `None` if it is not measured.
        - `lag`: the part of `exposed` in which they wait for the slowest rank.
    """
    together = _common(ranks, batches)
    own = [sum(step.seconds for step in steps) for steps in zip(*together, strict=True)]
    combined = {
        "ranks": len(ranks),
        "steps": sum(steps[0].batches for steps in together),
        "samples": sum(step.samples for steps in together for step in steps),
        "seconds": max(own, default=0.0),
        "step_seconds": [
            # Few digits, because rank 0 prints all of these on one line.
            round(_mean([step.seconds / max(1, step.batches) for step in steps]), 7)
            for steps in together
        ],
    }
    return {**combined, **_shares(together, _mean(own))}


def _common(ranks, batches):
    """Returns the steps that all ranks have measured, each as a list of `Step` by rank."""
    by_place = [{(step.epoch, step.place): step for step in steps} for steps in ranks]
    places = sorted(set.intersection(*(set(steps) for steps in by_place)))
    together = []
    for place in places:
        if are_enough([steps[0] for steps in together], batches):
            break
        together.append([steps[place] for steps in by_place])
    return together


def _shares(together, seconds):
    waited = [[step.waited for step in steps] for steps in together]
    if seconds == 0 or any(None in step for step in waited):
        return {"exposed": None, "lag": None}
    exposed = sum(_mean(step) for step in waited)
    reduction = sum(min(step) for step in waited)
    return {"exposed": exposed / seconds, "lag": (exposed - reduction) / seconds}


def _mean(values):
    return sum(values) / len(values) if values else 0.0
