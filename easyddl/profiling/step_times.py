"""The durations of a job's training steps: recorded on each rank, and combined over all ranks."""

import itertools
import threading
import typing

LEAST = 3  # steps, without which there is no median

_SIZES = 3  # how many sizes of a step frameworks are expected to compile


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
    """What has been recorded of an epoch.

    Attributes:
        taken: List with the samples and batches of all earlier steps, for each step that has begun.
        ended: Dict from the number of each step that has ended to its end and the time waited.
    """

    def __init__(self):
        self.taken = []
        self.ended = {}


class StepRecorder:
    """Records the training steps of this rank.

    The first step of an epoch is left out: no step ends at its begin. So is the first one with a
    smaller batch, such as the last of an epoch, because frameworks may compile it anew. Keras may
    report the ends of steps in other threads than their begins, and late.

    Args:
        warmup: Integer. The number of batches, from the first one on, that are left out.
    """

    def __init__(self, warmup):
        self._warmup = warmup
        self._epochs = []
        self._lock = threading.Lock()

    def begin_step(self, number, samples, batches):
        """Records the begin of a step.

        Args:
            number: Integer. The number of the step in its epoch, from 0.
            samples: Integer. The number of samples of all earlier steps.
            batches: Integer. The number of batches of all earlier steps.
        """
        with self._lock:
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
        with self._lock:
            self._epochs[-1].ended[number] = (time, waited)

    def steps(self, samples, batches):
        """Returns the list of `Step` so far.

        Args:
            samples: Integer. The number of samples of all steps.
            batches: Integer. The number of batches of all steps.
        """
        with self._lock:
            ends = [epoch.taken[0] for epoch in self._epochs[1:]]
            found, sizes = [], set()
            for number, end in enumerate([*ends, (samples, batches)][: len(self._epochs)]):
                found += self._steps_of(number, end, sizes)
            return found

    def _steps_of(self, number, end, sizes):
        """The steps of an epoch.

        Args:
            number: Integer. The number of the epoch.
            end: Pair. The samples and batches of all steps up to the end of the epoch.
            sizes: Set of the samples and batches of earlier steps, to which those of this epoch's
                steps are added.
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
    """Whether some steps of a rank are at least `LEAST`, with at least so many batches."""
    return len(steps) >= LEAST and sum(step.batches for step in steps) >= batches


def combine(ranks, batches):
    """Combines the steps of all ranks.

    In each step the rank that is the last to submit its gradients waits least. Its wait is the time
    of the exchange itself. What the other ranks wait beyond that is their wait for this rank.

    Args:
        ranks: List of the list of `Step` of each rank, by rank.
        batches: Integer. The number of batches of a rank after which later steps are left out.

    Returns:
        Dict with the following entries.

        - `ranks`: the number of ranks.
        - `steps`: the number of batches of each rank in the steps that all ranks have measured.
        - `samples`: the samples of all ranks in these steps.
        - `seconds`: the time of these steps.
        - `step_seconds`: list of the seconds per batch of each step, as the mean over the ranks.
        - `exposed`: the share of the time in which the ranks wait for averaged gradients, as the
          mean over the ranks; `None` if it is not measured.
        - `lag`: the part of this share in which they wait for the slowest rank.
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
    """The steps that all ranks have measured: for each of them a list by rank."""
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
    exchanged = sum(min(step) for step in waited)
    return {"exposed": exposed / seconds, "lag": (exposed - exchanged) / seconds}


def _mean(values):
    return sum(values) / len(values) if values else 0.0
