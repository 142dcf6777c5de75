"""Writes a timeline in the Trace Event Format of Chrome, which Perfetto opens."""

import json

from easyddl.profiling import overlap_analysis

# The row of the asynchronous events. Threads have other numbers.
_SUMMARY_THREAD = 0


def write(path, ranks):
    """Writes a timeline into one file, with a process for each rank and a row for each thread.

    The buckets of gradients overlap in time, so each bucket is an asynchronous event with its own
    row. The event begins when the bucket is submitted, and contains the time in the queue.

    Args:
        path: String or path. The file to write.
        ranks: List of `timeline.Rank`.

    Returns:
        Integer. The number of events in the file.
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
            steps.setdefault((span.values["reducer"], span.values["step"]), []).append(span)
            yield from _bucket(rank, span, origin)
        else:
            yield _complete(rank, span, origin)
    for (reducer, step), buckets in steps.items():
        yield from _reduction(rank, reducer, step, buckets, origin)


def _headings(rank):
    """Yields the events that name the process and the threads of a rank."""

    def heading(kind, thread=None, **arguments):
        event = {"ph": "M", "pid": rank.rank, "name": kind, "args": arguments}
        return event if thread is None else {**event, "tid": thread}

    yield heading("process_name", name=f"rank {rank.rank} on {rank.host}")
    yield heading("process_sort_index", sort_index=rank.rank)
    for thread, name in rank.threads.items():
        yield heading("thread_name", thread, name=name)
        yield heading("thread_sort_index", thread, sort_index=thread)


def _microseconds(nanoseconds):
    return round(nanoseconds / 1000, 3)


def _complete(rank, span, origin):
    """Returns the event of a span.

    Args:
        rank: `timeline.Rank`.
        span: `timeline.Span`.
        origin: Integer. The time that is 0 in the file, in nanoseconds of the root's clock.
    """
    return {
        "ph": "X",
        "pid": rank.rank,
        "tid": span.thread,
        "name": span.name,
        "cat": "easyddl",
        "ts": _microseconds(span.begin - origin),
        "dur": _microseconds(span.end - span.begin),
        "args": span.values,
    }


def _bucket(rank, span, origin):
    values = dict(span.values)
    begun = values.pop("begun")
    identity = "bucket {reducer}.{step}.{bucket}".format_map(values)
    name = f"bucket {values['bucket'] + 1} of {values['buckets']}"
    parts = [(name, span.begin, span.end, values), ("queued", span.begin, begun, {})]
    yield from _asynchronous(rank, identity, parts, origin)


def _reduction(rank, reducer, step, buckets, origin):
    """Yields the events of one step of a gradient reducer.

    Args:
        rank: `timeline.Rank`.
        reducer: Integer. The number of the reducer.
        step: Integer. The number of its step.
        buckets: List of the `timeline.Span` of the step's buckets.
        origin: Integer. The time that is 0 in the file, in nanoseconds of the root's clock.
    """
    begin = min(bucket.begin for bucket in buckets)
    exposed, end = overlap_analysis.interval(buckets)
    values = {"reducer": reducer, "step": step}
    parts = [(f"reducer {reducer}", begin, end, values), ("exposed", exposed, end, values)]
    yield from _asynchronous(rank, f"reducer {reducer}.{step}", parts, origin)


def _asynchronous(rank, identity, parts, origin):
    """Yields the events of a span and of a second span inside it.

    The file lists the outer span's begin first and its end last, because viewers use the order in
    the file for equal times.

    Args:
        rank: `timeline.Rank`.
        identity: String that connects the events of one row.
        parts: List of two tuples: name, begin, end and values, the outer span first.
        origin: Integer. The time that is 0 in the file, in nanoseconds of the root's clock.
    """

    def event(phase, name, time, values):
        return {
            "ph": phase,
            "pid": rank.rank,
            "tid": _SUMMARY_THREAD,
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
