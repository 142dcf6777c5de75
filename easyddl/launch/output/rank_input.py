"""The standard input of rank 0's program, which comes from `easyddl run`."""

import contextlib
import os
import selectors


class RankInput:
    """A pipe to a program, and the data that the program has not read yet.

    Args:
        pipe: File object. It is closed at the end of the input.
        selector: The selector of the supervisor's loop.
        link: `Connection` to `easyddl run`, which learns how much has been read.
    """

    def __init__(self, pipe, selector, link):
        self._pipe = pipe
        self._selector = selector
        self._link = link
        self._data = bytearray()
        self._is_complete = False
        self._is_watched = False
        os.set_blocking(pipe.fileno(), False)

    def add(self, data):
        """Adds a piece of the input.

        Args:
            data: Buffer of bytes; empty at the end of the input.
        """
        self._data += data
        self._is_complete |= not data
        self._write()

    def close(self):
        """Closes the pipe. Input that the program has not read is lost."""
        if self._is_watched:
            self._selector.unregister(self._pipe)
            self._is_watched = False
        self._data.clear()
        with contextlib.suppress(OSError):
            self._pipe.close()

    def _write(self):
        if self._pipe.closed:
            return
        try:
            size = os.write(self._pipe.fileno(), self._data) if self._data else 0
        except BlockingIOError:
            size = 0
        except OSError:  # the program has closed its input
            self.close()
            self._link.send(taken=None)
            return
        if size:
            del self._data[:size]
            self._link.send(taken=size)
        self._watch()
        if self._is_complete and not self._data:
            self.close()

    def _watch(self):
        """Registers `_write` for the time when the pipe has room, if data are left."""
        if self._data and not self._is_watched:
            self._selector.register(self._pipe, selectors.EVENT_WRITE, self._write)
        elif self._is_watched and not self._data:
            self._selector.unregister(self._pipe)
        self._is_watched = bool(self._data)
