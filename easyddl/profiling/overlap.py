"""How much of a rank's communication its computation hides."""

import dataclasses


@dataclasses.dataclass
class Exposure:
    """The time that a rank spends in exchanging gradients.

    A *bucket* communicates from the moment it is begun until it is back. The *exposed* part of a
    step goes from the moment at which its last gradient was handed in, when the rank's backward
    pass has ended, to the moment at which its last bucket is back, for which the step waits.
    *Communication* is the time in which a bucket communicates or the step waits so; what of it
    is not exposed is *hidden* behind the backward pass. All three hold what a rank waits for
    slower ones.

    The first step of each exchange, in which frameworks compile, is left out, and so is a step
    that was cut short. A training step with two optimizers makes two exchanges: times in which
    both communicate count once.

    Attributes:
        ends: Dict from (exchange, step) to when its last gradient was handed in.
        steps: The number of steps that count.
        communication: Nanoseconds, in all of these.
        exposed: The same.
        hidden: The same.
        step_time: Nanoseconds, the mean over those training steps that end such a step; `None`
            if they were not recorded, because `DDLCallback` was not used.
        others: Nanoseconds in collectives that are no exchange of gradients. Whoever calls one
            waits for it: all of this is exposed.
    """

    ends: dict
    steps: int
    communication: int
    exposed: int
    hidden: int
    step_time: float | None
    others: int


def expose(spans):
    """Adds up the spans of one rank.

    Args:
        spans: Iterable of `timeline.Span`.

    Returns:
        `Exposure`.
    """
    exchanged, training, collectives = {}, [], []
    for span in spans:
        if span.name == "bucket":
            key = span.values["exchange"], span.values["step"]
            exchanged.setdefault(key, []).append(span)
        elif span.name == "step":
            training.append((span.begin, span.end))
        elif "channel" in span.values:
            collectives.append(span)
    counted = {
        key: buckets
        for key, buckets in exchanged.items()
        if key[1] > 0 and len(buckets) == buckets[0].values["buckets"]
    }
    exposed = [interval(buckets) for buckets in counted.values()]
    under_way = [(b.values["begun"], b.end) for buckets in counted.values() for b in buckets]
    communication = length(under_way + exposed)
    own_lanes = {buckets[0].lane for buckets in exchanged.values()}
    others = [(c.begin, c.end) for c in collectives if c.lane not in own_lanes]
    ends = [end for _, end in exposed]
    lasting = [end - begin for begin, end in training if any(begin <= e <= end for e in ends)]
    return Exposure(
        ends={key: begin for key, (begin, _) in zip(counted, exposed, strict=True)},
        steps=len(counted),
        communication=communication,
        exposed=length(exposed),
        hidden=communication - length(exposed),
        step_time=sum(lasting) / len(lasting) if lasting else None,
        others=length(others),
    )


def interval(buckets):
    """From when the last gradient of a step was handed in until its last bucket is back."""
    return max(bucket.begin for bucket in buckets), max(bucket.end for bucket in buckets)


def length(intervals):
    """How long at least one of some intervals lasts."""
    total, reached = 0, None
    for begin, end in sorted(intervals):
        if reached is None or begin > reached:
            total += end - begin
            reached = end
        elif end > reached:
            total += end - reached
            reached = end
    return total


@dataclasses.dataclass
class Lag:
    """By how much a rank ended its backward passes after the rank that was first.

    Attributes:
        last: In how many steps it was the last rank.
        steps: Of how many that all ranks took.
        mean: Nanoseconds.
    """

    last: int
    steps: int
    mean: float


def lags(exposures):
    """How the ranks lag behind one another.

    Args:
        exposures: List of `Exposure`, by rank, on clocks that agree.

    Returns:
        List of `Lag`, by rank.
    """
    common = set.intersection(*(set(exposure.ends) for exposure in exposures))
    times = [[exposure.ends[key] for exposure in exposures] for key in common]
    result = []
    for rank in range(len(exposures)):
        last = sum(each[rank] == max(each) for each in times)
        behind = sum(each[rank] - min(each) for each in times)
        result.append(Lag(last, len(times), behind / max(1, len(times))))
    return result
