"""The analysis of overlap: how much of a rank's communication its computation hides."""

import dataclasses


@dataclasses.dataclass
class OverlapAnalysis:
    """The time that a rank spends on the reduction of gradients.

    A *bucket* communicates from the start of its reduction until its results are available. The
    *exposed* part of a step begins when the last gradient of the step is submitted, at the end of
    the backward pass. It ends when the results of the last bucket are available; the step waits for
    them. *Communication* is the time in which a bucket communicates or the step waits. The part of
    it that is not exposed is *hidden* behind the backward pass. All three include the time in which
    a rank waits for slower ranks.

    Two kinds of steps are left out: the first step of each reducer, in which frameworks compile,
    and a step that did not finish. A training step with two optimizers uses two reducers; the time
    in which both communicate counts once.

    Attributes:
        ends: Dict from (reducer, step) to the time at which its last gradient was submitted.
        steps: Integer. The number of steps that count.
        communication: Nanoseconds in all of these steps.
        exposed: Nanoseconds in all of these steps.
        hidden: Nanoseconds in all of these steps.
        step_time: Nanoseconds, the mean over the training steps in which these steps end. `None`
            if the trace has no training steps, because `DDLCallback` was not used.
        in_16_bits: Boolean. Whether gradients were sent to other hosts in 16 bits (`wire_dtype`).
        others: Nanoseconds in collectives other than the reduction of gradients. All of this time
            is exposed, because the caller of a collective waits for it.
    """

    ends: dict
    steps: int
    communication: int
    exposed: int
    hidden: int
    step_time: float | None
    in_16_bits: bool
    others: int


def analyze(spans):
    """Analyzes the spans of one rank.

    Args:
        spans: Iterable of spans, such as `rank.spans()` of a rank that `read_timeline` returns.

    Returns:
        `OverlapAnalysis`. Its attributes `steps`, `step_time`, `communication`, `exposed` and
        `hidden` are a number of steps and times in nanoseconds.
    """
    reduced, training, collectives = {}, [], []
    for span in spans:
        if span.name == "bucket":
            reduced.setdefault((span.values["reducer"], span.values["step"]), []).append(span)
        elif span.name == "step":
            training.append((span.begin, span.end))
        elif "communicator" in span.values:
            collectives.append(span)
    counted = {
        key: buckets
        for key, buckets in reduced.items()
        if key[1] > 0 and len(buckets) == buckets[0].values["buckets"]
    }
    exposed = [interval(buckets) for buckets in counted.values()]
    communicating = [(b.values["begun"], b.end) for key in counted for b in counted[key]]
    communication = length(communicating + exposed)
    reducer_threads = {buckets[0].thread for buckets in reduced.values()}
    others = [(c.begin, c.end) for c in collectives if c.thread not in reducer_threads]
    ends = [end for _, end in exposed]
    lasting = [end - begin for begin, end in training if any(begin <= e <= end for e in ends)]
    return OverlapAnalysis(
        ends={key: begin for key, (begin, _) in zip(counted, exposed, strict=True)},
        steps=len(counted),
        communication=communication,
        exposed=length(exposed),
        hidden=communication - length(exposed),
        step_time=sum(lasting) / len(lasting) if lasting else None,
        in_16_bits=any(buckets[0].values["in_16_bits"] for buckets in reduced.values()),
        others=length(others),
    )


def interval(buckets):
    """Returns the exposed part of a step, as a pair of times.

    Args:
        buckets: List of the `timeline.Span` of the step's buckets.
    """
    return max(bucket.begin for bucket in buckets), max(bucket.end for bucket in buckets)


def length(intervals):
    """Returns the length of the union of intervals.

    Args:
        intervals: Iterable of pairs of begin and end.
    """
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
    """The delay of a rank's backward passes, measured from the first rank that ends each pass.

    Attributes:
        last: Integer. The number of steps in which this rank was the last.
        steps: Integer. The number of steps that all ranks took.
        mean: Nanoseconds. The mean delay.
        wait: Nanoseconds. The mean time from the end of its pass to that of the last rank's.
    """

    last: int
    steps: int
    mean: float
    wait: float


def lags(analyses):
    """Returns the delay of each rank.

    Args:
        analyses: List of `OverlapAnalysis`, by rank, with times of one clock.

    Returns:
        List of `Lag`, by rank.
    """
    common = set.intersection(*(set(analysis.ends) for analysis in analyses))
    times = [[analysis.ends[key] for analysis in analyses] for key in common]
    result = []
    for rank in range(len(analyses)):
        last = sum(each[rank] == max(each) for each in times)
        behind = sum(each[rank] - min(each) for each in times)
        ahead = sum(max(each) - each[rank] for each in times)
        count = max(1, len(times))
        result.append(Lag(last, len(times), behind / count, ahead / count))
    return result
