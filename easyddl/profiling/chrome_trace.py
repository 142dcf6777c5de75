"""The format of timelines that Chrome's about:tracing has made common, and Perfetto opens."""

import json

from easyddl.profiling import overlap

# A lane beside the threads' own.
_SUMMARY_LANE = 0


def write(path, ranks):
    """Writes a timeline as one file: a process for each rank, a row for each thread.

    The buckets of gradients, which overlap, are asynchronous events: each has a row of its own,
    in which the time it was queued is a part of the time since it was handed in.

    Args:
        path: Of the file.
        ranks: List of `timeline.Rank`.

    Returns:
        How many events it holds.
    """
    starts = [rank.clock.start for rank in ranks if rank.clock.start is not None]
    origin = min(starts, default=0)
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for rank in ranks:
            for event in _events(rank, origin):
                file.write(",\n" if count else "\n")
                json.dump(event, file, separators=(",", ":"))
                count += 1
        file.write("\n]}\n")
    return count


def _events(rank, origin):
    yield from _headings(rank)
    steps = {}
    for span in rank.spans():
        if span.name == "bucket":
            steps.setdefault((span.values["exchange"], span.values["step"]), []).append(span)
            yield from _bucket(rank, span, origin)
        else:
            yield _complete(rank, span, origin)
    for (exchange, step), buckets in steps.items():
        yield from _exchange(rank, exchange, step, buckets, origin)


def _headings(rank):
    def heading(kind, lane=None, **arguments):
        event = {"ph": "M", "pid": rank.rank, "name": kind, "args": arguments}
        return event if lane is None else {**event, "tid": lane}

    yield heading("process_name", name=f"rank {rank.rank} on {rank.host}")
    yield heading("process_sort_index", sort_index=rank.rank)
    for lane, name in rank.lanes.items():
        yield heading("thread_name", lane, name=name)
        yield heading("thread_sort_index", lane, sort_index=lane)


def _microseconds(nanoseconds):
    return round(nanoseconds / 1000, 3)


def _complete(rank, span, origin):
    return {
        "ph": "X",
        "pid": rank.rank,
        "tid": span.lane,
        "name": span.name,
        "cat": "easyddl",
        "ts": _microseconds(span.begin - origin),
        "dur": _microseconds(span.end - span.begin),
        "args": span.values,
    }


def _bucket(rank, span, origin):
    values = dict(span.values)
    begun = values.pop("begun")
    identity = "bucket {exchange}.{step}.{bucket}".format_map(values)
    name = f"bucket {values['bucket'] + 1} of {values['buckets']}"
    parts = [(name, span.begin, span.end, values), ("queued", span.begin, begun, {})]
    yield from _asynchronous(rank, identity, parts, origin)


def _exchange(rank, exchange, step, buckets, origin):
    begin = min(bucket.begin for bucket in buckets)
    exposed, end = overlap.interval(buckets)
    values = {"exchange": exchange, "step": step}
    parts = [(f"exchange {exchange}", begin, end, values), ("exposed", exposed, end, values)]
    yield from _asynchronous(rank, f"exchange {exchange}.{step}", parts, origin)


def _asynchronous(rank, identity, parts, origin):
    """A span and one inside it: viewers take the order of equal times from the file."""

    def event(phase, name, time, values):
        return {
            "ph": phase,
            "pid": rank.rank,
            "tid": _SUMMARY_LANE,
            "id2": {"local": identity},
            "cat": "easyddl",
            "name": name,
            "ts": _microseconds(time - origin),
            "args": values,
        }

    for name, begin, _, values in parts:
        yield event("b", name, begin, values)
    for name, _, end, values in reversed(parts):
        yield event("e", name, end, values)
