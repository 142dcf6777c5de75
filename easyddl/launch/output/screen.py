"""Writes the output of all ranks to this process's standard output and standard error."""

import errno
import os
import select
import stat
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
        # By file, the rank and the stream whose unfinished line is at the end. Both streams may be
        # one file, for example a terminal.
        self._unfinished = {}
        self._files = {name: _file_of(each) for name, each in self._descriptors.items()}

    def write(self, rank, stream, lines):
        """Writes lines of a rank.

        Args:
            rank: Integer.
            stream: String, `out` or `err`.
            lines: List of bytes. The last one may be a part of a line.
        """
        if self._prefix:
            begin = f"[{rank:{self._width}}] ".encode()
            lines = [self._prefixed(begin, rank, stream, bytes(line)) for line in lines]
        _write(self._descriptors[stream], b"".join(lines))

    def finish(self):
        """Ends unfinished lines."""
        for _, stream in self._unfinished.values():
            _write(self._descriptors[stream], b"\n")
        self._unfinished.clear()

    def tell(self, text):
        """Writes a line of easyddl's own to standard error."""
        _write(self._descriptors["err"], f"easyddl: {text}\n".encode(errors="replace"))

    def _prefixed(self, begin, rank, stream, line):
        mine, file = (rank, stream), self._files[stream]
        before = self._unfinished.pop(file, None)
        if not line.endswith((b"\n", b"\r")):
            self._unfinished[file] = mine
        if before is None:
            return begin + line
        # Another unfinished line ends the screen, or this rank continues its own.
        return line if before == mine else b"\n" + begin + line


def _file_of(descriptor):
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _write(descriptor, data):
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            # mpirun has the same streams, and MPICH's makes them non-blocking.
            writable = select.poll()
            writable.register(descriptor, select.POLLOUT)
            writable.poll()
        except OSError as error:
            if error.errno != errno.EIO or not stat.S_ISCHR(os.fstat(descriptor).st_mode):
                raise
            return  # the terminal is gone. The ranks still have their time to save.
