"""Cuts what a process writes into lines."""

import collections
import re

_LONGEST = 1 << 16  # bytes that are kept of an unfinished line

# A carriage return ends a line, too: a progress bar writes its line again after it.
_LINE = re.compile(rb"[^\r\n]*(?:\r*\n|\r+(?!\r*\n))")


class Lines:
    """Cuts a stream of bytes into lines, and keeps the last ones.

    Args:
        keep: Integer. How many of the last lines `last` has.
    """

    def __init__(self, keep=20):
        self._unfinished = b""
        self._last = collections.deque(maxlen=keep)

    @property
    def has_unfinished(self):
        """Whether data of an unfinished line are kept back."""
        return bool(self._unfinished)

    def add(self, data):
        """Returns the lines, with their ends, that are complete with these data."""
        text = self._unfinished + data
        # A newline may still follow a carriage return at the end of the data.
        end = len(text.rstrip(b"\r"))
        lines = [found[0] for found in _LINE.finditer(text[:end])]
        self._unfinished = text[sum(map(len, lines)) :]
        if len(self._unfinished) > _LONGEST:
            lines.append(self._unfinished)
            self._unfinished = b""
        self._keep(lines)
        return lines

    def rest(self):
        """Returns the unfinished line, and forgets it."""
        rest, self._unfinished = self._unfinished, b""
        self._keep([rest] if rest else [])
        return rest

    def last(self):
        """The last lines, as text without their ends."""
        texts = [line.rstrip(b"\r\n").decode(errors="replace") for line in self._last]
        return [text for text in texts if text.strip()]

    def _keep(self, lines):
        for line in lines:
            if self._last and not self._last[-1].endswith(b"\n"):
                # An unfinished line goes on, or one that ended in a return is written again.
                before = self._last.pop()
                line = line if before.endswith(b"\r") else before + line
            self._last.append(line)
