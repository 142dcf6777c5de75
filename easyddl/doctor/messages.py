"""JSON messages between the coordinator and its agents, one on each line of a TCP connection."""

import collections
import contextlib
import json
import socket
import threading

from easyddl.launch.connection import split_messages


class Messages:
    """The two directions of one connection.

    Args:
        connection: Socket, connected. It belongs to this object from now on.
    """

    def __init__(self, connection):
        self.socket = connection
        self._received = b""
        self._messages = collections.deque()
        self._sending = threading.Lock()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message):
        """Sends one message. Several threads may do so at once.

        Args:
            message: Dictionary that JSON can represent.

        Raises:
            OSError: If the connection is closed, or takes nothing for the socket's time limit.
        """
        with self._sending:
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout):
        """Waits for the next message. Only one thread may do so.

        Args:
            timeout: Number. The seconds after which a silent connection is an error.

        Returns:
            The message; `None` at the end of the connection.

        Raises:
            OSError: If nothing comes in time, or the connection breaks.
            ValueError: If the other side sends no such message, or too long a line.
        """
        self.socket.settimeout(timeout)
        while not self._messages:
            more = self.socket.recv(1 << 16)
            if not more:
                return None
            messages, self._received = split_messages(self._received + more)
            self._messages.extend(messages)
        return self._messages.popleft()

    def close(self):
        """Closes the connection, also while another thread waits for a message."""
        with contextlib.suppress(OSError):  # it may be closed already
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
