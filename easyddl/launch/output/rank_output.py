"""Where the output of one rank's program goes: to `easyddl run`, or to a file."""

import os
import pathlib

from easyddl.launch.output import startup_lines
from easyddl.launch.output.call_marks import CallMarks
from easyddl.launch.output.error_text import ErrorText
from easyddl.launch.output.lines import LastLines, Lines
from easyddl.profiling import output_file


class RankOutput:
    """The output of one rank's program.

    A rank of `easyddl.Ranks` writes a mark when its calls begin. Its output after the mark is sent
    to the caller as it is, instead of in lines.

    Args:
        link: `Connection` to `easyddl run`.
        order: Dictionary. `rank`; `output`, the directory of the files or `None`; and `mark`, the
            mark of `Ranks` as hexadecimal digits, or `None`.

    Raises:
        OSError: If the file cannot be made.
    """

    def __init__(self, link, order):
        self.problem = None  # why output is lost
        self._link = link
        self._rank = order["rank"]
        self._streams = {"out": Lines(), "err": Lines()}
        self._last = LastLines()  # of both streams, in the order of their arrival
        self._errors = ErrorText(self._rank)
        self._startup = startup_lines.Shown()
        mark = bytes.fromhex(order["mark"]) if order["mark"] else None
        self._marks = {stream: CallMarks(mark) for stream in self._streams} if mark else {}
        self._found = dict.fromkeys(self._streams, 0)  # how many marks of each stream
        self._path = None
        if order["output"]:
            self._path = pathlib.Path(order["directory"], order["output"], f"{self._rank}.log")
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = output_file.create(self._path, 0o666)

    @property
    def has_unfinished(self):
        """Whether output waits for `flush`."""
        unfinished = any(lines.has_unfinished for lines in self._streams.values())
        return unfinished or self._errors.is_held

    def add(self, stream, data):
        """Adds data that the program has written to `out` or `err`."""
        for piece in self._marks[stream].split(data) if self._marks else [data]:
            if piece is None:
                self._add_mark(stream)
            else:
                self._add(stream, piece)

    def _add_mark(self, stream):
        """Tells the caller how many marks both streams have."""
        self._found[stream] += 1
        self._link.send(mark=min(self._found.values()))

    def _add(self, stream, data):
        if self._found[stream]:
            self._link.send(data, call_output=stream)
            return
        lines = self._streams[stream].add(data)
        if stream == "err":
            lines = [line for line in lines if self._startup.shows(self._rank, line)]
        self._write(stream, lines)
        self._send("err", self._errors.overdue())

    def flush(self):
        """Passes on unfinished lines, such as a question or a progress bar."""
        for stream, lines in self._streams.items():
            if lines.has_unfinished:
                self._write(stream, [lines.rest()])
        self._send("err", self._errors.overdue())

    def expect_nothing_else(self):
        """Records that the program has ended. Its last output may still be in the pipes."""
        self._errors.expect_nothing_else()

    def close(self, failed):
        """Passes on the rest of the output.

        Args:
            failed: Boolean. Whether the program has failed, by the error that it printed last.
        """
        for stream, marks in self._marks.items():
            self._add(stream, marks.rest())
        self.flush()
        error = self._errors.error_at_end() if failed else None
        if error is not None:
            self._link.send(error=error)
        self._send("err", self._errors.release())
        if self._path is not None:
            os.close(self._file)

    def last(self):
        """Returns the last lines of the program."""
        return self._last.texts()

    def _write(self, stream, lines):
        self._last.extend(lines)
        if self.problem:
            return
        if self._path is not None:
            self._write_to_file(b"".join(lines))
        if stream == "out":
            self._send(stream, lines)
            return
        passed_on = []
        for line in lines:
            kept, error = self._errors.add(line)
            passed_on += kept
            if error is not None:
                self._send(stream, passed_on)
                passed_on = []
                self._link.send(error=error)
        self._send(stream, passed_on)

    def _write_to_file(self, data):
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self.problem = f"its output file {self._path}: {error.strerror}"

    def _send(self, stream, lines):
        """Passes lines on to `easyddl run`, if the rank has no file."""
        if self._path is None and lines:
            self._link.send(b"".join(lines), output=stream, sizes=list(map(len, lines)))
