"""The TCP connections between a caller and its ranks, and the messages on them.

A message is a list of byte strings: their number, the length of each, and the strings themselves.
"""

import collections
import socket
import struct

from easyddl.launch import handshake
from easyddl.launch.connection import keep_alive

CONTROL, STDOUT, STDERR = range(3)  # the kinds of connection: messages, and the two outputs

CLAIM = struct.Struct("!BI")  # what a rank claims in the handshake: the kind, and its rank

TOKEN = "_EASYDDL_RANKS_TOKEN"  # the environment variable that holds the token

_CALLER = 30.0  # seconds in which a rank reaches its caller


def connect(address, token, kind, rank):
    """Connects a rank to its caller.

    Args:
        address: Pair of the host's address and the port.
        token: String.
        kind: `CONTROL`, `STDOUT` or `STDERR`.
        rank: Integer.

    Returns:
        A blocking socket, whose other end has proved that it knows the token.

    Raises:
        OSError: If there is no caller at this address.
        ConnectionError: If the process at this address does not know the token.
    """
    try:
        sock = handshake.connect(address, token, CLAIM.pack(kind, rank), _CALLER)
    except PermissionError:
        raise ConnectionError(
            f"The process at {address[0]} port {address[1]} is not the one that started the "
            "ranks: it does not know their token."
        ) from None
    configure(sock)
    return sock


def configure(sock):
    """Sends small messages at once, and notices within a minute that the other host is gone."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(sock, 50)


def pack(parts):
    """The buffers to send for a message.

    Args:
        parts: List of byte strings or other buffers of bytes, at least one.
    """
    header = struct.pack(f"!I{len(parts)}Q", len(parts), *(len(part) for part in parts))
    return [header, *(part for part in parts if len(part))]


class Outbox:
    """Messages that wait to be sent through a non-blocking socket."""

    def __init__(self):
        self._buffers = collections.deque()

    def __bool__(self):
        return bool(self._buffers)

    def put(self, parts):
        """Appends a message."""
        self._buffers.extend(memoryview(each) for each in pack(parts))

    def send(self, sock):
        """Sends as much as the socket takes at once."""
        while self._buffers:
            first = self._buffers[0]
            sent = sock.send(first)
            if sent < len(first):
                self._buffers[0] = first[sent:]
                return
            self._buffers.popleft()


class Inbox:
    """Assembles messages that come through a socket."""

    def __init__(self):
        self._steps = self._assemble()
        self._target = next(self._steps)

    def receive(self, sock):
        """Reads once from a socket.

        Args:
            sock: A blocking or non-blocking socket.

        Returns:
            The message that is now complete, a list of `bytearray`; or `None`.

        Raises:
            EOFError: If the other side has closed the connection.
        """
        size = sock.recv_into(self._target)
        if size == 0:
            raise EOFError("The connection was closed.")
        self._target = self._target[size:]
        if self._target:
            return None
        following = next(self._steps)
        if isinstance(following, list):
            self._target = next(self._steps)
            return following
        self._target = following
        return None

    def wait(self, sock):
        """Reads from a blocking socket until a message is complete.

        Args:
            sock: A blocking socket.
        """
        while (message := self.receive(sock)) is None:
            pass
        return message

    def _assemble(self):
        """Yields the memory to fill next, and each message when it is complete."""
        while True:
            count = bytearray(4)
            yield memoryview(count)
            sizes = bytearray(8 * int.from_bytes(count, "big"))
            yield memoryview(sizes)
            parts = [bytearray(size) for (size,) in struct.iter_unpack("!Q", sizes)]
            for part in parts:
                if part:
                    yield memoryview(part)
            yield parts
