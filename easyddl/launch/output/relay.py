"""Shows the output of the ranks in the caller's streams, line by line, with the rank in front.

A notebook and a terminal also show the line that rank 0 has not completed, such as a progress bar.
Such a line is rewritten in place, at most five times per second however often the rank writes it.
The relay writes in the thread that calls it, so a notebook shows the output below the right cell.
Relays of several jobs, in several threads, may write to the same stream.
"""

import os
import re
import threading
import time
import weakref

from easyddl.launch.output import startup_lines

REFRESH = 0.2  # seconds between two versions of an incomplete line

_CONTROLS = re.compile("(\r*\n|\r+|\b+)")  # matches a whole run, or the search would be quadratic
_COLORS = re.compile("\x1b\\[[0-9;]*[A-Za-z]")
_LONGEST = 1 << 16  # characters; a longer line is cut


class Line:
    """The current line of a rank, as a terminal would show it."""

    def __init__(self):
        self._pieces = []  # joined when they are read, so that adding to a long line costs little
        self._length = 0
        self._back = 0  # backspaces and a carriage return take effect when text follows
        self._return = False

    @property
    def text(self):
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def write(self, text):
        """Adds text.

        Args:
            text: String.

        Returns:
            List of strings. The lines that the text completed.
        """
        complete = []
        for piece in _CONTROLS.split(text):
            if piece.endswith("\n"):
                complete.append(self.end())
            elif piece.startswith("\r"):
                self._return = True
            elif piece.startswith("\b"):
                self._back += len(piece)
            elif piece:
                self._add(piece)
        if self._length > _LONGEST:
            complete.append(self.end())
        return complete

    def end(self):
        """Begins a new line, and returns the text of the old one."""
        text = self.text
        self.__init__()
        return text

    def _add(self, piece):
        self._erase(self._length if self._return else self._back)
        self._pieces.append(piece)
        self._length += len(piece)
        self._back, self._return = 0, False

    def _erase(self, count):
        """Removes the last characters."""
        count = min(count, self._length)
        self._length -= count
        while count:
            last = self._pieces.pop()
            if len(last) > count:
                self._pieces.append(last[:-count])
            count -= min(count, len(last))


class _Bottom:
    """The incomplete line at the bottom of a stream, whichever relay has written it."""

    def __init__(self):
        self.lock = threading.Lock()
        self.text = ""


_bottoms: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by stream
os.register_at_fork(after_in_child=_bottoms.clear)  # another thread may hold a lock


def _bottom_of(stream):
    try:
        return _bottoms.setdefault(stream, _Bottom())
    except TypeError:  # such as None
        return _Bottom()


class _Display:
    """One of the caller's streams."""

    def __init__(self, stream):
        self._stream = stream
        self._in_notebook = type(stream).__module__.startswith("ipykernel")
        self.is_live = self._in_notebook or _is_terminal(stream)
        self._bottom = _bottom_of(stream)

    def print(self, lines):
        """Prints complete lines. The incomplete line disappears."""
        with self._bottom.lock:
            text = ""
            for line in lines:
                text += f"{self._in_place(line)}\n"
                self._bottom.text = ""
            self._write(text)

    def show(self, line):
        """Shows a new version of the incomplete line at the bottom."""
        with self._bottom.lock:
            if line != self._bottom.text:
                self._write(self._in_place(line))
                self._bottom.text = line

    def flush(self):
        # A notebook's stream sends what it has five times per second.
        if not self._in_notebook and hasattr(self._stream, "flush"):
            self._stream.flush()

    def _in_place(self, line):
        """Returns the text that replaces the incomplete line by another line."""
        shown = self._bottom.text
        if line.startswith(shown):
            return line[len(shown) :]
        blank = f"\r{' ' * _width(shown)}" if _width(shown) > _width(line) else ""
        return f"{blank}\r{line}"

    def _write(self, text):
        if not text or self._stream is None:
            return
        try:
            self._stream.write(text)
        except UnicodeEncodeError as error:
            self._stream.write(text.encode(error.encoding, "replace").decode(error.encoding))


def _is_terminal(stream):
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False


def _width(line):
    return len(_COLORS.sub("", line))


class Relay:
    """Shows what the ranks write during one call.

    Args:
        size: Integer. The number of ranks. The output of a single rank has no prefix.
        streams: Pair. The caller's standard output and standard error.
    """

    def __init__(self, size, streams):
        self._prefixed = size > 1
        self._displays = [_Display(stream) for stream in streams]
        self._lines = [[Line() for _ in range(size)] for _ in streams]
        self._startup = startup_lines.Shown()
        self._refreshed = 0.0
        self._stale = False

    @property
    def is_live(self):
        """Whether a terminal or a notebook shows incomplete lines."""
        return any(display.is_live for display in self._displays)

    def write(self, rank, stream, text):
        """Adds output of a rank.

        Args:
            rank: Integer.
            stream: Integer. 0 for standard output, 1 for standard error.
            text: String.
        """
        complete = self._lines[stream][rank].write(text)
        if stream:
            complete = [each for each in complete if self._shows(rank, each)]
        self._displays[stream].print([self._line(rank, each) for each in complete])
        self._stale = True

    def refresh(self):
        """Shows rank 0's incomplete line if it is time. Call it often."""
        now = time.monotonic()
        if self._stale and now - self._refreshed >= REFRESH:
            self._refreshed, self._stale = now, False
            for display, lines in zip(self._displays, self._lines, strict=True):
                if display.is_live and lines[0].text:
                    display.show(self._line(0, lines[0].text))
                display.flush()

    def finish(self):
        """Prints the lines that are still incomplete, at the end of the call."""
        for display, lines in zip(self._displays, self._lines, strict=True):
            rest = [(rank, line.end()) for rank, line in enumerate(lines)]
            display.print([self._line(rank, text) for rank, text in rest if text])
            display.flush()

    def _shows(self, rank, line):
        return self._startup.shows(rank, line[:500].encode(errors="replace"))

    def _line(self, rank, text):
        return f"[{rank}] {text}" if self._prefixed else text
