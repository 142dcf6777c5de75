"""The measurement of a script at one number of ranks."""

import dataclasses
import statistics


@dataclasses.dataclass(frozen=True)
class Measurement:
    """The measurement of a script at one number of ranks.

    Attributes:
        ranks: Integer. The number of ranks.
        steps: Integer. The number of steps of each rank.
        samples: Integer. The samples of all ranks in these steps.
        seconds: Float. The time of these steps.
        step_seconds: List of floats. The time of each step.
        exposed: Float. The share of the time in which the ranks wait for averaged gradients; `None`
            if it is not measured.
        lag: Float. The part of `exposed` in which they wait for the slowest rank, or `None`.
        reading_seconds: Float. The time that reading a batch takes by itself, or `None`.
        threads: Integer. The number of compute threads of a rank.
        hosts: List of dicts, by host: `host`, and the number of its `ranks`, `cores` and `gpus`.
    """

    ranks: int
    steps: int
    samples: int
    seconds: float
    step_seconds: list[float]
    exposed: float | None
    lag: float | None
    reading_seconds: float | None
    threads: int
    hosts: list[dict]

    @property
    def rate(self):
        """The samples per second of all ranks."""
        return self.samples / self.seconds

    @property
    def batch(self):
        """The mean number of samples of a rank in a step."""
        return self.samples / self.steps / self.ranks

    @property
    def step(self):
        """The mean time of a step, in seconds."""
        return self.seconds / self.steps

    @property
    def median_step(self):
        """The median time of a step, in seconds."""
        return statistics.median(self.step_seconds)

    @property
    def input(self):
        """The time to read a batch divided by the time of a step, or `None`."""
        return None if self.reading_seconds is None else self.reading_seconds / self.step

    def speed_up(self, first):
        """Returns the rate divided by the rate of another measurement."""
        return self.rate / first.rate

    def efficiency(self, first):
        """Returns the speed-up divided by the ideal speed-up, the ratio of the numbers of ranks."""
        return self.speed_up(first) * first.ranks / self.ranks
