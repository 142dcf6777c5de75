"""Cuts what a process writes into lines."""

import collections
import re

LONGEST = 1 << 16  # bytes that are kept of an unfinished line; a longer one comes in parts
_SHOWN = 1 << 12  # bytes of a line that `last` shows

# A carriage return ends a line, too: a progress bar writes its line again after it. A run of
# returns matches as a whole, so that the search never looks at one byte many times.
_END = re.compile(rb"\r*\n|\r+")


class Lines:
    """Cuts a stream of bytes into lines, and keeps the last ones.

    Args:
        keep: Integer. How many of the last lines `last` has.
    """

    def __init__(self, keep=20):
        self._unfinished = bytearray()
        self._searched = 0  # no line ends in the unfinished data before here
        self._last = collections.deque(maxlen=keep)

    @property
    def has_unfinished(self):
        """Whether data of an unfinished line are kept back."""
        return bool(self._unfinished)

    def add(self, data):
        """Returns the lines, with their ends, that are complete with these data.

        Its time grows with the data alone: old data are not searched again, however long a line is.
        """
        text = self._unfinished
        text += data
        lines, begin, searched = [], 0, len(text)
        for found in _END.finditer(text, self._searched):
            end = found.end()
            if end == len(text) and not found[0].endswith(b"\n"):
                searched = found.start()  # a newline may still follow these returns
                break
            lines.append(bytes(text[begin:end]))
            begin = end
        del text[:begin]
        self._searched = searched - begin
        if len(text) > LONGEST:
            lines.append(self._take())
        self._keep(lines)
        return lines

    def rest(self):
        """Returns the unfinished line, and forgets it."""
        rest = self._take()
        self._keep([rest] if rest else [])
        return rest

    def _take(self):
        text, self._unfinished, self._searched = bytes(self._unfinished), bytearray(), 0
        return text

    def last(self):
        """Returns the last lines, as text without their ends."""
        texts = [line.rstrip(b"\r\n").decode(errors="replace") for line in self._last]
        return [text for text in texts if text.strip()]

    def _keep(self, lines):
        for line in lines:
            if self._last and not self._last[-1].endswith(b"\n"):
                # An unfinished line goes on, or one that ended in a return is written again.
                before = self._last.pop()
                line = line if before.endswith(b"\r") else before + line
            self._last.append(_ending(line))


def _ending(line):
    """Returns the end of a line, which is all of it unless it is very long."""
    return line if len(line) <= _SHOWN else b"..." + line[3 - _SHOWN :]
