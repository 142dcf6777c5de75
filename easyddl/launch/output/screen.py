"""Writes the output of all ranks to this process's standard output and standard error."""

import dataclasses
import os
import select
import sys
import time

from easyddl.launch.output import lines as output_lines

_LONGEST_HOLD = 1.0  # seconds without a further part of a long line, after which others go on
_MOST_HELD = 16 << 20  # bytes of other ranks that wait for the end of a long line


@dataclasses.dataclass
class _Stream:
    """Standard output or standard error.

    Attributes:
        descriptor: Integer.
        unfinished: Integer. The rank whose unfinished line is at the end; `None` without one.
        writer: Integer. The rank that is in the middle of a long line, for whose end the other
            ranks wait; `None` if no rank waits for another one.
        written_at: Float. When the last part of that line arrived, by `time.monotonic`.
        held: Dictionary from each rank that waits to its list of lines.
        size: Integer. The number of bytes in `held`.
    """

    descriptor: int
    unfinished: int | None = None
    writer: int | None = None
    written_at: float = 0.0
    held: dict[int, list] = dataclasses.field(default_factory=dict)
    size: int = 0


class Screen:
    """Standard output and standard error of `easyddl run`.

    A long line arrives in parts. Lines of other ranks that arrive between two parts are held back,
    because they would break the line.

    Args:
        size: Integer. The number of ranks.
        prefix: Boolean. Whether each line begins with its rank.
    """

    def __init__(self, size, prefix):
        self._width = len(str(size - 1))
        self._prefix = prefix
        self._out = _Stream(sys.stdout.fileno())
        self._err = _Stream(sys.stderr.fileno())

    def write(self, rank, name, lines):
        """Writes lines of a rank to `out` or `err`.

        Args:
            rank: Integer.
            name: String. The stream.
            lines: List of bytes. The last one may be a part of a line.
        """
        self._write_lines(self._out if name == "out" else self._err, rank, lines)

    def release_overdue(self):
        """Writes held lines if the rank in the middle of a line writes nothing more of it."""
        for stream in (self._out, self._err):
            if stream.held and time.monotonic() > stream.written_at + _LONGEST_HOLD:
                self._release(stream)

    def finish(self):
        """Writes held lines, and ends unfinished lines."""
        for stream in (self._out, self._err):
            while stream.held:
                self._release(stream)
            if stream.unfinished is not None:
                stream.unfinished = None
                _write(stream.descriptor, b"\n")

    def tell(self, text):
        """Writes a line of easyddl's own to standard error."""
        _write(self._err.descriptor, f"easyddl: {text}\n".encode(errors="replace"))

    def _write_lines(self, stream, rank, lines):
        if stream.writer not in (None, rank):
            self._hold(stream, rank, lines)
            return
        end = len(lines)
        if stream.held:  # the other ranks wait for the first of these lines that is complete
            end = next((at for at, line in enumerate(lines, 1) if _is_complete(line)), end)
        if end:
            self._print(stream, rank, lines[:end])
        if end < len(lines) or stream.writer is None:
            self._release(stream)
        if end < len(lines):
            self._write_lines(stream, rank, lines[end:])

    def _print(self, stream, rank, lines):
        if self._prefix:
            lines = [self._prefixed(stream, rank, bytes(line)) for line in lines]
        _write(stream.descriptor, b"".join(lines))
        has_more = not _is_complete(lines[-1]) and len(lines[-1]) > output_lines.LONGEST
        stream.writer, stream.written_at = rank if has_more else None, time.monotonic()

    def _prefixed(self, stream, rank, data):
        begin = f"[{rank:{self._width}}] ".encode()
        before, stream.unfinished = stream.unfinished, None if _is_complete(data) else rank
        if before is None:
            return begin + data
        # An unfinished line of another rank ends the screen, or this rank continues its own.
        return data if before == rank else b"\n" + begin + data

    def _hold(self, stream, rank, lines):
        stream.held.setdefault(rank, []).extend(lines)
        stream.size += sum(map(len, lines))
        if stream.size > _MOST_HELD:
            self._release(stream)

    def _release(self, stream):
        """Writes held lines, until a rank is in the middle of a long line again."""
        stream.writer = None
        while stream.held and stream.writer is None:
            rank = next(iter(stream.held))
            lines = stream.held.pop(rank)
            stream.size -= sum(map(len, lines))
            if lines:
                self._print(stream, rank, lines)


def _is_complete(line):
    return bytes(line[-1:]) in (b"\n", b"\r")


def _write(descriptor, data):
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            # mpirun has the same streams, and MPICH's makes them non-blocking.
            writable = select.poll()
            writable.register(descriptor, select.POLLOUT)
            writable.poll()
