"""Cuts what a process writes into lines."""

import collections
import re

from easyddl.launch.output import startup_lines

LONGEST = 1 << 20  # bytes that are kept of an unfinished line; a longer one comes in parts
_SHOWN = 1 << 12  # bytes that are kept of each of the last lines

# A carriage return ends a line, too: a progress bar writes its line again after it. A run of
# returns matches as a whole, so that the search never looks at one byte many times.
_END = re.compile(rb"\r*\n|\r+")
_LINE = re.compile(rb"[^\r\n]*(?:\r*\n|\r+)")


class Lines:
    """Cuts a stream of bytes into lines."""

    def __init__(self):
        self._unfinished = bytearray()
        self._searched = 0  # no line ends in the unfinished data before here

    @property
    def has_unfinished(self):
        """Whether data of an unfinished line are kept back."""
        return bool(self._unfinished)

    def add(self, data):
        """Returns the lines, with their ends, that are complete with these data.

        Its time grows with the data alone: old data are not searched again, however long a line is.
        """
        text, lines = self._unfinished, []
        text += data
        first = _END.search(text, self._searched)
        if first is not None:
            end = 1 + max(text.rfind(b"\n"), text.rfind(b"\r"))
            lines = [bytes(text[: first.end()]), *_LINE.findall(text, first.end(), end)]
        # A newline may still follow the last returns.
        held = lines.pop() if text.endswith(b"\r") else b""
        del text[: sum(map(len, lines))]
        self._searched = len(held.rstrip(b"\r")) if held else len(text)
        return [*lines, self.rest()] if len(text) > LONGEST else lines

    def rest(self):
        """Returns the unfinished line, and forgets it."""
        text, self._unfinished, self._searched = bytes(self._unfinished), bytearray(), 0
        return text


class LastLines:
    """Keeps the last lines of a program.

    Args:
        count: Integer. How many lines are kept.
    """

    def __init__(self, count=20):
        self._lines = collections.deque(maxlen=count)

    def extend(self, lines):
        """Adds lines of bytes with their ends, or parts of them. Only the last ones are read."""
        begin, left = len(lines), self._lines.maxlen
        while begin and left:
            begin -= 1
            left -= lines[begin].endswith(b"\n") and not startup_lines.is_information(lines[begin])
        for line in lines[begin:]:
            if not startup_lines.is_information(line):
                self._add(line)

    def _add(self, line):
        if self._lines and not self._lines[-1].endswith(b"\n"):
            # An unfinished line goes on, or one that ended in a return is written again.
            before = self._lines.pop()
            line = line if before.endswith(b"\r") else before + line
        self._lines.append(line if len(line) <= _SHOWN else b"..." + line[3 - _SHOWN :])

    def texts(self):
        """Returns the lines that are not blank, as strings without their ends."""
        texts = [line.rstrip(b"\r\n").decode(errors="replace") for line in self._lines]
        return [text for text in texts if text.strip()]
