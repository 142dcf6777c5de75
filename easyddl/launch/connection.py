"""Connections that carry messages: lines of JSON over TCP."""

import contextlib
import errno
import json
import os
import socket

_SILENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)

LARGEST = 64 << 20  # bytes of a message; more can come only from something else


class ConnectionLost(Exception):
    """The other side has closed the connection, or does not answer any more.

    Args:
        text: String. Why the connection has ended.
        is_silent: Boolean. Whether the other host does not answer.
    """

    def __init__(self, text, is_silent=False):
        super().__init__(text)
        self.is_silent = is_silent


class Connection:
    """A non-blocking connection that carries messages.

    Args:
        sock: Connected socket.
    """

    def __init__(self, sock):
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = sock
        self._received = b""
        self._unsent = bytearray()

    @property
    def unsent(self):
        """The number of bytes that the system has not taken yet."""
        return len(self._unsent)

    def send(self, **message):
        """Sends a message, or keeps what the system does not take now for `flush`."""
        self._unsent += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self):
        """Sends what is left of earlier messages. Errors are left to `receive`."""
        with contextlib.suppress(BlockingIOError, InterruptedError):
            try:
                while self._unsent:
                    del self._unsent[: self.socket.send(self._unsent)]
            except OSError as error:
                if isinstance(error, (BlockingIOError, InterruptedError)):
                    raise
                self._unsent.clear()

    def receive(self):
        """The messages that have arrived since the last call.

        Raises:
            ConnectionLost: If the connection has ended. Messages before that have been returned.
        """
        try:
            data = self.socket.recv(1 << 16)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise ConnectionLost(reason_of(error), error.errno in _SILENT) from None
        if not data:
            raise ConnectionLost("it ended")
        try:
            messages, self._received = split_messages(self._received + data)
        except ValueError:
            raise ConnectionLost("it sent what is no message") from None
        return messages

    def close(self):
        """Closes the connection."""
        self.socket.close()


def split_messages(data):
    """Splits bytes into a list of messages and the rest, a message that has not come in full.

    Raises:
        ValueError: If the bytes are no messages.
    """
    *lines, rest = data.split(b"\n")
    messages = [json.loads(line) for line in lines]
    if len(rest) > LARGEST or not all(isinstance(message, dict) for message in messages):
        raise ValueError("what has come is no message")
    return messages, rest


def reason_of(error):
    """Why a connection has ended, for a message."""
    if error.errno in _SILENT:
        return "it does not answer"
    return os.strerror(error.errno) if error.errno else str(error)


def keep_alive(sock, seconds):
    """Makes the kernel end an idle connection whose other host does not answer for some time.

    The kernel of the other host answers, not the process: a process that is stopped, or has no
    time, is not lost. It needs a connection that carries no data: data that are not acknowledged
    are sent again for many minutes.
    """
    probes = 4
    interval = max(1, round(seconds / (probes + 1)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, probes)
