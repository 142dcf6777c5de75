"""Passes the output of calls on from `easyddl run` to the process that has called the ranks."""

import socket

from easyddl.transport.connection import Connection, ConnectionLost

_MARK = 10.0  # seconds in which the caller sends its mark
_MOMENT = 0.01  # seconds
_LAST = 2.0  # seconds in which a caller takes some of the last output
_MOST_UNSENT = 64 << 20  # bytes that are kept for a caller, which reads during its calls only


class CallOutput:
    """The connection of `easyddl run` to the process that uses `easyddl.Ranks`.

    Args:
        descriptor: Integer. A socket that this process has inherited from the caller.

    Attributes:
        mark: String of hexadecimal digits. The caller's mark: see `CallMarks`.

    Raises:
        RuntimeError: If the caller has ended.
    """

    def __init__(self, descriptor):
        sock = socket.socket(fileno=descriptor)
        sock.set_inheritable(False)
        self._connection = Connection(sock)
        try:
            self.mark = bytes(self._connection.wait(_MARK).buffers[0]).hex()
        except (ConnectionLost, TimeoutError) as error:
            raise RuntimeError("The process that wanted these ranks has ended.") from error

    def has_room(self):
        """Returns whether the caller has so little to read that ranks need not wait.

        Otherwise it sends for a moment what is left.
        """
        return self._connection.unsent <= _MOST_UNSENT or self._connection.flush(_MOMENT)

    def watch(self, selector):
        """Sends what is left whenever the caller has room.

        Args:
            selector: The selector of the job's loop.
        """
        self._connection.watch(selector, self._receive)

    def send(self, rank, message, buffers):
        """Passes a message of a rank on, with the rank.

        Args:
            rank: Integer.
            message: Dictionary. The header of the message.
            buffers: List of buffers of bytes.
        """
        self._connection.send(*buffers, rank=rank, **message)

    def close(self):
        """Sends what is left, for as long as the caller takes it, and closes the connection."""
        before = None
        while self._connection.unsent not in (0, before):
            before = self._connection.unsent
            self._connection.flush(_LAST)
        self._connection.close()

    def _receive(self):
        try:
            self._connection.receive()
        except ConnectionLost:  # the ranks end by their own connections to the caller
            self._connection.unwatch()
