"""How fast an epoch's steps go, on one rank and on all."""

import time
import typing


class Own(typing.NamedTuple):
    """What one rank measures of an epoch.

    Attributes:
        samples: How many its steps have taken.
        seconds: From the beginning of the epoch to the end of its last step.
        busy: Seconds of these in which the rank did not stand still for an exchange: for its
            data, the forward and the backward pass, callbacks. `None` if that was not measured.
    """

    samples: int
    seconds: float
    busy: float | None


class Pace:
    """Measures the epochs of a fit on this rank.

    The first step of a fit, in which frameworks compile and ranks register their gradients with
    one another, counts for the samples and seconds, not for the busy time.

    Args:
        meter: The fit's `StepMeter`.
        join: The fit's `Join`; `None` if its steps exchange nothing.
    """

    def __init__(self, meter, join):
        self._meter = meter
        self._join = join
        self._last = None  # when the last step ended; `None` before the first

    def begin_epoch(self):
        """Called as an epoch begins."""
        self._begin = time.perf_counter()
        self._samples = self._meter.samples
        self._since = None if self._last is None else (self._begin, self._waited())
        self._last = self._begin

    def end_step(self):
        """Called as a step ends."""
        self._last = time.perf_counter()
        if self._since is None:
            self._since = self._last, self._waited()

    def _waited(self):
        return 0.0 if self._join is None else self._join.waited

    def now(self):
        """The epoch so far: `Own`."""
        busy = None
        measured = self._since is not None and self._since[0] < self._last
        if self._join is not None and measured:
            begin, before = self._since
            waited = self._waited()
            if None not in (before, waited):
                busy = self._last - begin - (waited - before)
        return Own(self._meter.samples - self._samples, self._last - self._begin, busy)


class Together(typing.NamedTuple):
    """What all ranks' figures of an epoch come to.

    Attributes:
        rate: Samples a second, over all ranks.
        slowest: The rank that was busy for longest; `None` if that is not known.
        share: How many times the ranks' mean it was busy.
    """

    rate: float
    slowest: int | None
    share: float | None


def together(ranks):
    """Sums up an epoch.

    Args:
        ranks: List of `Own`, by rank.

    Returns:
        `Together`.
    """
    seconds = max(own.seconds for own in ranks)
    rate = sum(own.samples for own in ranks) / seconds if seconds > 0 else 0.0
    busy = [own.busy for own in ranks]
    if len(ranks) == 1 or None in busy or sum(busy) <= 0:
        return Together(rate, None, None)
    longest = max(busy)
    return Together(rate, busy.index(longest), longest * len(busy) / sum(busy))
