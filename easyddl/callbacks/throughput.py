"""Measures the throughput of an epoch, on one rank and on all ranks."""

import time
import typing


class RankThroughput(typing.NamedTuple):
    """The throughput of one rank in an epoch.

    Attributes:
        samples: Integer. The number of samples in the rank's steps.
        seconds: Float. The time from the beginning of the epoch to the end of its last step.
        busy: Float. The part of these seconds in which the rank did not wait for gradients, but
            read data, ran the forward and the backward pass, or ran callbacks. `None` if it was not
            measured.
    """

    samples: int
    seconds: float
    busy: float | None


class ThroughputMeter:
    """Measures the epochs of a fit on this rank.

    In the first step of a fit, frameworks compile and the ranks register their gradients. This step
    counts in the samples and the seconds, but not in the busy time.

    Args:
        meter: The fit's `StepMeter`.
        join: The fit's `Join`; `None` if its steps reduce no gradients.
    """

    def __init__(self, meter, join):
        self._meter = meter
        self._join = join
        self._last = None  # the time at which the last step ended; `None` before the first

    def begin_epoch(self):
        """Starts the measurement of an epoch."""
        self._begin = time.perf_counter()
        self._samples = self._meter.samples
        self._since = None if self._last is None else (self._begin, self._waited())
        self._last = self._begin

    def end_step(self):
        """Records the end of a step."""
        self._last = time.perf_counter()
        if self._since is None:
            self._since = self._last, self._waited()

    def _waited(self):
        return 0.0 if self._join is None else self._join.waited

    def now(self):
        """Returns the `RankThroughput` of the epoch so far."""
        busy = None
        measured = self._since is not None and self._since[0] < self._last
        if self._join is not None and measured:
            begin, before = self._since
            waited = self._waited()
            if None not in (before, waited):
                busy = self._last - begin - (waited - before)
        return RankThroughput(self._meter.samples - self._samples, self._last - self._begin, busy)


class JobThroughput(typing.NamedTuple):
    """The throughput of all ranks in an epoch.

    Attributes:
        rate: Float. Samples per second, over all ranks.
        slowest: Integer. The rank with the longest busy time; `None` if it is not known.
        share: Float. The slowest rank's busy time divided by the mean of all ranks; `None` if it is
            not known.
    """

    rate: float
    slowest: int | None
    share: float | None


def combine(ranks):
    """Combines the throughput of all ranks.

    Args:
        ranks: List of `RankThroughput`, by rank.

    Returns:
        `JobThroughput`.
    """
    seconds = max(own.seconds for own in ranks)
    rate = sum(own.samples for own in ranks) / seconds if seconds > 0 else 0.0
    busy = [own.busy for own in ranks]
    if len(ranks) == 1 or None in busy or sum(busy) <= 0:
        return JobThroughput(rate, None, None)
    longest = max(busy)
    return JobThroughput(rate, busy.index(longest), longest * len(busy) / sum(busy))
