"""The durations of a job's training steps: recorded on each rank, and combined over all ranks."""

import itertools
import typing

LEAST = 3  # the smallest number of steps of which a median is meaningful

_SIZES = 3  # a step of a new size counts as compiled for up to this many sizes


class Step(typing.NamedTuple):
    """A step of one rank. With `steps_per_execution`, Keras takes several batches in one step.

    Attributes:
        epoch: Integer. The number of the epoch since the recording began.
        number: Integer. The number of the step in its epoch.
        seconds: Float. The time from the end of the step before it to its own end.
        waited: Float. The part of these seconds in which the rank waited for averaged gradients,
            with its own gradients all submitted. `None` if it is not measured.
        samples: Integer. The number of samples of this rank.
        batches: Integer. The number of batches of this rank.
    """

    epoch: int
    number: int
    seconds: float
    waited: float | None
    samples: int
    batches: int


class _Epoch:
    """The records of an epoch.

    Attributes:
        taken: List with a pair for each step that has begun: the numbers of samples and of batches
            of all earlier steps.
        ended: Dict from the number of each step that has ended to its end and the time waited.
    """

    def __init__(self):
        self.taken = []
        self.ended = {}


class StepRecorder:
    """Records the training steps of this rank.

    The first step of an epoch is left out, because its start is not the end of another step. The
    first step with a smaller batch, such as the last one of an epoch, is left out too, because
    frameworks may compile it again. The end of a step may be recorded after the start of the next
    step.

    Args:
        warmup: Integer. The number of batches, from the first one on, that are left out.
    """

    def __init__(self, warmup):
        self._warmup = warmup
        self._epochs = []

    def begin_step(self, number, samples, batches):
        """Records the start of a step.

        Args:
            number: Integer. The number of the step in its epoch, from 0.
            samples: Integer. The number of samples of all earlier steps.
            batches: Integer. The number of batches of all earlier steps.
        """
        if number == 0 or not self._epochs:
            self._epochs.append(_Epoch())
        self._epochs[-1].taken.append((samples, batches))

    def end_step(self, number, time, waited):
        """Records the end of a step.

        Args:
            number: Integer. The number of the step in its epoch, from 0.
            time: Float, in seconds.
            waited: Float. The seconds that all steps so far have waited; `None` if not measured.
        """
        self._epochs[-1].ended[number] = (time, waited)

    def steps(self, samples, batches):
        """Returns the list of `Step` so far.

        Args:
            samples: Integer. The number of samples of all steps.
            batches: Integer. The number of batches of all steps.
        """
        ends = [epoch.taken[0] for epoch in self._epochs[1:]]
        found, sizes = [], set()
        for number, end in enumerate([*ends, (samples, batches)][: len(self._epochs)]):
            found += self._steps_of(number, end, sizes)
        return found

    def _steps_of(self, number, end, sizes):
        """Yields the steps of an epoch.

        Args:
            number: Integer. The number of the epoch.
            end: Pair. The samples and batches of all steps up to the end of the epoch.
            sizes: Set of pairs: the numbers of samples and batches of earlier steps. The sizes of
                this epoch's steps are added.
        """
        epoch, first = self._epochs[number], self._epochs[0].taken[0][1]
        for step, (before, after) in enumerate(itertools.pairwise([*epoch.taken, end])):
            size = after[0] - before[0], after[1] - before[1]
            compiles = size not in sizes and len(sizes) < _SIZES
            sizes.add(size)
            is_measured = {step - 1, step} <= epoch.ended.keys()
            if compiles or not is_measured or before[1] - first < self._warmup:
                continue
            (begin, waited_before), (ended, waited) = epoch.ended[step - 1], epoch.ended[step]
            wait = None if None in (waited, waited_before) else waited - waited_before
            yield Step(number, step, ended - begin, wait, *size)


def are_enough(steps, batches):
    """Returns whether a rank has at least `LEAST` steps with at least `batches` batches."""
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
    by_place = [{(step.epoch, step.number): step for step in steps} for steps in ranks]
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
