"""Writes the output of all ranks to this process's standard output and standard error."""

import os
import select
import sys


class Screen:
    """Standard output and standard error of `easyddl run`.

    Args:
        size: Integer. The number of ranks.
        prefix: Boolean. Whether each line begins with its rank.
    """

    def __init__(self, size, prefix):
        self._width = len(str(size - 1))
        self._prefix = prefix
        self._descriptors = {"out": sys.stdout.fileno(), "err": sys.stderr.fileno()}
        # The rank whose unfinished line is at the end of each stream.
        self._unfinished = {}

    def write(self, rank, stream, lines):
        """Writes lines of a rank, as bytes, of which the last one may be a part of a line."""
        if self._prefix:
            lines = [self._prefixed(rank, stream, bytes(line)) for line in lines]
        self._write(self._descriptors[stream], b"".join(lines))

    def _prefixed(self, rank, stream, data):
        begin = f"[{rank:{self._width}}] ".encode()
        before = self._unfinished.pop(stream, None)
        if not data.endswith((b"\n", b"\r")):
            self._unfinished[stream] = rank
        if before is None:
            return begin + data
        # An unfinished line of another rank ends the screen, or this rank continues its own.
        return data if before == rank else b"\n" + begin + data

    def finish(self):
        """Ends unfinished lines."""
        for stream in list(self._unfinished):
            del self._unfinished[stream]
            self._write(self._descriptors[stream], b"\n")

    def tell(self, text):
        """Writes a line of easyddl's own to standard error."""
        self._write(self._descriptors["err"], f"easyddl: {text}\n".encode(errors="replace"))

    def _write(self, descriptor, data):
        while data:
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                # mpirun has the same streams, and MPICH's makes them non-blocking.
                writable = select.poll()
                writable.register(descriptor, select.POLLOUT)
                writable.poll()
