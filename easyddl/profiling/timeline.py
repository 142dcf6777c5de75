"""The files that the ranks of one job have written, as one timeline."""

import bisect
import itertools
import json
import pathlib
import re
import typing

from easyddl.profiling import trace_file

_MOST_NAMED = 10  # missing ranks, in an error


class Span(typing.NamedTuple):
    """What a rank did for a while.

    Attributes:
        name: What, such as "copy in".
        lane: The number of the thread.
        begin: Nanoseconds of the root's clock.
        end: The same.
        values: Dict of what else is known of it.
    """

    name: str
    lane: int
    begin: int
    end: int
    values: dict


class Clock:
    """Turns a rank's time into the root's.

    Args:
        readings: List of tuples: a time of this clock, how far the root's was ahead of it, and
            by how much that may be wrong. Between two, clocks drift apart evenly.

    Attributes:
        error: By how much it may be wrong, where it was read.
        start: The root's time when it was read first, before the first span; `None` if it
            never was.
    """

    def __init__(self, readings):
        self._times = [at for at, _, _ in readings]
        self._offsets = [offset for _, offset, _ in readings]
        self.error = max((error for _, _, error in readings), default=0)
        self.start = self.to_root(self._times[0]) if readings else None

    def to_root(self, time):
        """The root's time at a time of this rank."""
        after = bisect.bisect(self._times, time)
        if after in (0, len(self._times)):
            return time + (self._offsets[max(0, after - 1)] if self._offsets else 0)
        begin, end = self._times[after - 1 : after + 1]
        first, last = self._offsets[after - 1 : after + 1]
        return time + first + (last - first) * (time - begin) // (end - begin)


class Rank:
    """One rank's file. What is read again is not kept: it may be long.

    Attributes:
        rank: Integer.
        host: String.
        size: The number of ranks of its job.
        job: String, the same for all files of one run.
        lanes: Dict of the names of its threads.
        clock: `Clock`.
        is_whole: Whether it was written to its end.

    Raises:
        ValueError: If the file is none of easyddl's, or damaged.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.lanes = {}
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
                f"{self.path} is empty or cut off in its first line: the job ended as it started."
            )
        if not isinstance(first, dict) or first.get("easyddl_timeline") != trace_file.FORMAT:
            raise ValueError(
                f"{self.path} does not begin as a timeline that this version of easyddl writes. "
                f"Received: {json.dumps(first)[:80]}"
            )
        self.rank, self.host = first.get("rank"), first.get("host")
        self.size, self.job = first.get("size"), first.get("job")
        numbers_fit = type(self.rank) is type(self.size) is int and 0 <= self.rank < self.size
        if not numbers_fit or not isinstance(self.host, str) or not isinstance(self.job, str):
            raise ValueError(
                f"{self.path} does not tell the rank, size, host and job of a timeline. "
                f"Received: {json.dumps(first)[:200]}"
            )

    def _take(self, line):
        if "lane" in line:
            self.lanes[line["lane"]] = line["name"]
        elif "clock" in line:
            self._readings.append((line["clock"], line["offset"], line["error"]))
        elif "end" in line:
            self.is_whole = True

    def _lines(self):
        """Yields its lines. What is wrong with one is an error that names it."""
        with self.path.open(encoding="utf-8", errors="replace") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith("\n"):
                    return  # the job ended while it was written
                try:
                    line = json.loads(text)
                    if isinstance(line, list) and number > 1:
                        name, lane, begin, duration, values = line
                        line = Span(name, lane, begin, begin + duration, dict(values))
                except (ValueError, TypeError) as error:
                    raise ValueError(f"{self.path} is damaged in line {number}: {error}") from error
                yield line

    def spans(self):
        """Yields its spans, those of a thread in the order of their ends."""
        to_root = self.clock.to_root
        for line in self._lines():
            if isinstance(line, Span):
                if "begun" in line.values:
                    line.values["begun"] = to_root(line.values["begun"])
                begin, end = to_root(line.begin), to_root(line.end)
                yield line._replace(begin=begin, end=end)


def read(folder):
    """Opens the files of all ranks of a job.

    Args:
        folder: The directory that `EASYDDL_TIMELINE` named.

    Returns:
        List of `Rank`, by rank.

    Raises:
        FileNotFoundError: If there is no such directory, or no file in it, or a rank's is
            missing.
        ValueError: If a file is damaged, or of another run than the root's.
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
    # Counted by the files that are here: a damaged one may claim any number of ranks.
    number_missing = size - sum(rank < size for rank in paths)
    if number_missing:
        missing = (str(rank) for rank in itertools.count() if rank not in paths)
        named = ", ".join(itertools.islice(missing, min(number_missing, _MOST_NAMED)))
        more = number_missing - _MOST_NAMED
        raise FileNotFoundError(
            f"The job had {size} ranks, but {folder} has no file of rank {named}"
            f"{f' and of {more} more' if more > 0 else ''}. "
            "Copy the files of all hosts into one directory."
        )
    # A file of a higher rank was left here by an earlier job.
    ranks = [Rank(paths[rank]) for rank in range(size)]
    for number, each in enumerate(ranks):
        if each.rank != number:
            raise ValueError(f"{each.path} is the file of rank {each.rank}, by another name.")
        if each.job != ranks[0].job:
            raise ValueError(
                f"{each.path} is of another run than {ranks[0].path}. Use a directory of its own "
                "for each job."
            )
    return ranks
