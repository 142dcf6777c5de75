"""Where the output of one rank's program goes: to `easyddl run`, or to a file."""

import os
import pathlib

from easyddl.launch import startup_lines
from easyddl.launch.lines import Lines


class RankOutput:
    """The output of one rank's program.

    Args:
        link: `Connection` to `easyddl run`.
        order: Dictionary. `rank`, and `output`, the directory of the files or `None`.

    Raises:
        OSError: If the file cannot be made.
    """

    def __init__(self, link, order):
        self.problem = None  # why output is lost
        self._link = link
        self._rank = order["rank"]
        self._streams = {"out": Lines(), "err": Lines()}
        self._last = Lines()  # of both streams, in the order of their arrival
        self._path = None
        if order["output"]:
            self._path = pathlib.Path(order["directory"], order["output"], f"{self._rank}.log")
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)

    @property
    def has_unfinished(self):
        """Whether a part of a line waits for `flush`."""
        return any(lines.has_unfinished for lines in self._streams.values())

    def add(self, stream, data):
        """Takes data that the program has written to `out` or `err`."""
        for line in self._streams[stream].add(data):
            if stream == "err" and self._rank and startup_lines.is_information(line):
                continue
            self._write(stream, line)

    def flush(self):
        """Passes on unfinished lines, such as a question or a progress bar."""
        for stream, lines in self._streams.items():
            if lines.has_unfinished:
                self._write(stream, lines.rest())

    def close(self):
        """Passes on all that is left."""
        self.flush()
        if self._path is not None:
            os.close(self._file)

    def last(self):
        """The last lines of the program."""
        self._last.rest()
        return self._last.last()

    def _write(self, stream, line):
        if not startup_lines.is_information(line):
            self._last.add(line)
        if self.problem:
            return
        if self._path is None:
            self._link.send(output=line.decode("utf-8", "surrogateescape"), stream=stream)
            return
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            self.problem = self.problem or f"its output file {self._path}: {error.strerror}"
