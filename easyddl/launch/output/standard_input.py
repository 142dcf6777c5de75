"""Passes this process's standard input on to the program of rank 0, as fast as the program reads.

Launchers pass input on too. But MPICH's launcher ends the job if rank 0 reads more slowly than the
input arrives: a file of 100 kB, which arrives before the program runs, is too much.
"""

import contextlib
import errno
import os
import selectors
import stat
import sys

_AHEAD = 1 << 18  # bytes that have been sent and not been read by the program
_PIECE = 1 << 16  # bytes of a message


def is_open():
    """Returns whether there is a standard input that this process may read.

    A job in the background of a shell must leave the terminal's input to the shell.
    """
    try:
        os.fstat(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):  # it is closed
        return False
    return _is_in_foreground()


def _is_in_foreground():
    try:
        return not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return False


class StandardInput:
    """Standard input, while rank 0 may read it.

    Args:
        selector: The selector of the job's loop.
        link: `Connection` to the supervisor of rank 0.
    """

    def __init__(self, selector, link):
        self._selector = selector
        self._link = link
        self._ahead = 0
        self._is_watched = False
        self._is_always_ready = False
        self._descriptor = _reopened()
        self.watch()

    def watch(self):
        """Reads when there is something to read, if it may be read now. Call it now and then."""
        wanted = self._descriptor is not None and self._ahead < _AHEAD and _is_in_foreground()
        if wanted and self._is_always_ready:
            self._read()
        elif wanted and not self._is_watched:
            try:
                self._selector.register(self._descriptor, selectors.EVENT_READ, self._read)
                self._is_watched = True
            except PermissionError:  # a file, or a device such as /dev/null
                self._is_always_ready = True
                self._read()
        elif self._is_watched and not wanted:
            self._selector.unregister(self._descriptor)
            self._is_watched = False

    def taken(self, size):
        """Records how much the program has read.

        Args:
            size: Integer. How many bytes; `None` if it has closed its input.
        """
        if size is None:
            self.close()
            return
        self._ahead -= size
        self.watch()

    def close(self):
        """Stops reading."""
        if self._descriptor is None:
            return
        if self._is_watched:
            self._selector.unregister(self._descriptor)
            self._is_watched = False
        os.close(self._descriptor)
        self._descriptor = None

    def _read(self):
        """Sends the input that has arrived, and an empty buffer at its end."""
        if self._descriptor is None:  # another event of this round has closed it
            return
        try:
            data = os.read(self._descriptor, _PIECE)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR):
                return
            data = b""  # such as EIO of a terminal that has gone
        self._link.send(data, input=True)
        if not data:
            self.close()
            return
        self._ahead += len(data)
        self.watch()


def _reopened():
    """Returns a descriptor of standard input, non-blocking if no other process shares that setting.

    Another process that reads the same pipe may take this process's input.
    """
    descriptor = sys.stdin.fileno()
    mode = os.fstat(descriptor).st_mode
    # A file opened again would be read from its beginning.
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        with contextlib.suppress(OSError):
            return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return os.dup(descriptor)
