"""Reads the trace files of all ranks of a job as one timeline."""

import bisect
import itertools
import json
import pathlib
import re
import typing

from easyddl.profiling import trace_file

_MOST_NAMED = 10  # how many missing ranks an error lists


class Span(typing.NamedTuple):
    """One operation of a rank, with its start and end.

    Attributes:
        name: String. The operation, such as "copy in".
        thread: Integer. The number of the thread.
        begin: Nanoseconds of the root's clock.
        end: Nanoseconds of the root's clock.
        values: Dict of further properties, such as the number of bytes.
    """

    name: str
    thread: int
    begin: int
    end: int
    values: dict


class Clock:
    """Converts times of a rank's clock to the root's clock.

    Args:
        readings: List of tuples: a time of the rank's clock, the offset of the root's clock at that
            time, and the maximal error of the offset. Between two readings the offset is
            interpolated.

    Attributes:
        error: Nanoseconds. The maximal error of a reading.
        start: The root's time at the first reading, which precedes the first span; `None` without
            readings.
    """

    def __init__(self, readings):
        self._times = [at for at, _, _ in readings]
        self._offsets = [offset for _, offset, _ in readings]
        self.error = max((error for _, _, error in readings), default=0)
        self.start = self.to_root(self._times[0]) if readings else None

    def to_root(self, time):
        """Converts a time of this rank's clock to the root's clock."""
        after = bisect.bisect(self._times, time)
        if after in (0, len(self._times)):
            return time + (self._offsets[max(0, after - 1)] if self._offsets else 0)
        begin, end = self._times[after - 1 : after + 1]
        first, last = self._offsets[after - 1 : after + 1]
        return time + first + (last - first) * (time - begin) // (end - begin)


class Rank:
    """The trace file of one rank. The spans are not kept in memory, because the file may be long.

    Args:
        path: String or path. The file.

    Attributes:
        rank: Integer. The number of the rank.
        host: String. The name of its host.
        size: Integer. The number of ranks of its job.
        job: String, equal in all files of one run.
        threads: Dict from the number of a thread to its name.
        clock: `Clock`. Converts the rank's times to the root's clock.
        is_whole: Boolean. Whether the file is complete.

    Raises:
        ValueError: If the file is damaged, or is not a trace file of easyddl.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.threads = {}
        self.is_whole = False
        self._readings = []
        lines = self._lines()
        self._take_first(next(lines, None))
        for line in lines:
            if isinstance(line, dict):
                self._take(line)
        self.clock = Clock(self._readings)

    def _take_first(self, first):
        if first is None:
            raise ValueError(
                f"{self.path} is empty or cut off in its first line: the job ended early."
            )
        found = first if isinstance(first, dict) else {}
        self.rank, self.size = found.get("rank"), found.get("size")
        self.host, self.job = found.get("host"), found.get("job")
        numbers_fit = type(self.rank) is type(self.size) is int and 0 <= self.rank < self.size
        texts_fit = isinstance(self.host, str) and isinstance(self.job, str)
        is_known = found.get("easyddl_timeline") == trace_file.FORMAT
        if not (is_known and numbers_fit and texts_fit):
            raise ValueError(
                f"{self.path} does not begin like a timeline that this version of easyddl writes. "
                f"Received: {json.dumps(first)[:200]}"
            )

    def _take(self, line):
        if "lane" in line:  # the name of a thread in the file format
            self.threads[line["lane"]] = line["name"]
        elif "clock" in line:
            self._readings.append((line["clock"], line["offset"], line["error"]))
        elif "end" in line:
            self.is_whole = True

    def _lines(self):
        """Yields the parsed lines of the file. An error names the line."""
        with self.path.open(encoding="utf-8", errors="replace") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith("\n"):
                    return  # the job ended while this line was written
                try:
                    line = json.loads(text)
                    if isinstance(line, list) and number > 1:
                        name, thread, begin, duration, values = line
                        line = Span(name, thread, begin, begin + duration, dict(values))
                except (ValueError, TypeError) as error:
                    raise ValueError(f"{self.path} is damaged in line {number}: {error}") from error
                yield line

    def spans(self):
        """Yields the spans of the rank. The spans of each thread are in the order of their ends."""
        to_root = self.clock.to_root
        for line in self._lines():
            if isinstance(line, Span):
                if "begun" in line.values:
                    line.values["begun"] = to_root(line.values["begun"])
                begin, end = to_root(line.begin), to_root(line.end)
                yield line._replace(begin=begin, end=end)


def read(folder):
    """Opens the trace files of all ranks of a job.

    Args:
        folder: String or path. The directory that `EASYDDL_TIMELINE` named.

    Returns:
        List of `Rank`, by rank. A `Rank` has the attributes `rank`, `host` and `size`, and the
        method `spans()`, which yields each `Span` with its `name`, `begin` and `end` in
        nanoseconds of the root's clock, and `values`.

    Raises:
        FileNotFoundError: If the directory or the file of a rank is missing.
        ValueError: If a file is damaged, or belongs to another run than the root's file.
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no directory {folder}.")
    paths = {}
    for path in folder.iterdir():
        match = re.fullmatch(r"rank-(\d+)\.jsonl", path.name)
        if match:
            paths[int(match[1])] = path
    if not paths:
        raise FileNotFoundError(
            f"There is no timeline in {folder}: no file {trace_file.file_name(0)}. Run the job "
            f"with {trace_file.VARIABLE}={folder}."
        )
    size = Rank(paths[min(paths)]).size
    # A damaged file may claim any size, so the loop ends early.
    lacking = (str(rank) for rank in range(size) if rank not in paths)
    if named := list(itertools.islice(lacking, _MOST_NAMED)):
        more = size - sum(rank < size for rank in paths) - len(named)
        raise FileNotFoundError(
            f"The job had {size} ranks, but {folder} has no file of rank {', '.join(named)}"
            f"{f' and of {more} more' if more > 0 else ''}. "
            "Copy the files of all hosts into one directory."
        )
    # Files of higher ranks are from an earlier job.
    ranks = [Rank(paths[rank]) for rank in range(size)]
    for number, each in enumerate(ranks):
        if each.rank != number:
            raise ValueError(f"{each.path} is the file of rank {each.rank}, under another name.")
        if each.job != ranks[0].job:
            raise ValueError(
                f"{each.path} is of another run than {ranks[0].path}. Use a different directory "
                "for each job."
            )
    return ranks
