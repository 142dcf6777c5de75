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

_COLORS = re.compile("\x1b\\[[0-9;]*[A-Za-z]")
_CONTROLS = "\r\b"
_LONGEST = 1 << 16  # characters; a longer line is cut


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


def _rewritten(line):
    """Carries out carriage returns and backspaces as a terminal does, when text follows them."""
    text = line.rstrip(_CONTROLS)
    characters = []
    for piece in re.split("(\b+)", text.rpartition("\r")[2]):
        if piece.startswith("\b"):
            del characters[-len(piece) :]
        else:
            characters += piece
    controls = line[len(text) :]
    controls = "\r" if "\r" in controls else controls[: len(characters)]
    return "".join(characters) + controls


class Relay:
    """Shows what the ranks write during one call.

    Args:
        size: Integer. The number of ranks. The output of a single rank has no prefix.
        streams: Pair. The caller's standard output and standard error.
    """

    def __init__(self, size, streams):
        self._prefixed = size > 1
        self._displays = [_Display(stream) for stream in streams]
        self._unfinished = [[""] * size for _ in streams]
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
        text = self._unfinished[stream][rank] + text
        lines = [_rewritten(line) for line in text.split("\n")]
        self._unfinished[stream][rank] = "" if len(lines[-1]) > _LONGEST else lines.pop()
        complete = [line.rstrip(_CONTROLS) for line in lines]
        if stream:
            complete = [each for each in complete if self._shows(rank, each)]
        self._displays[stream].print([self._line(rank, each) for each in complete])
        self._stale = True

    def refresh(self):
        """Shows rank 0's incomplete line if it is time. Call it often."""
        now = time.monotonic()
        if self._stale and now - self._refreshed >= REFRESH:
            self._refreshed, self._stale = now, False
            for display, unfinished in zip(self._displays, self._unfinished, strict=True):
                if display.is_live and unfinished[0].rstrip(_CONTROLS):
                    display.show(self._line(0, unfinished[0].rstrip(_CONTROLS)))
                display.flush()

    def finish(self):
        """Prints the lines that are still incomplete, at the end of the call."""
        for display, unfinished in zip(self._displays, self._unfinished, strict=True):
            rest = [(rank, line.rstrip(_CONTROLS)) for rank, line in enumerate(unfinished)]
            display.print([self._line(rank, line) for rank, line in rest if line])
            display.flush()
            unfinished[:] = [""] * len(unfinished)

    def _shows(self, rank, line):
        return self._startup.shows(rank, line[:500].encode(errors="replace"))

    def _line(self, rank, text):
        return f"[{rank}] {text}" if self._prefixed else text
