"""JSON messages between the coordinator and its agents, one on each line of a TCP connection."""

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading

_LONGEST = 16 << 20  # bytes of a message
_LONGEST_OF_A_STRANGER = 1 << 10


class Messages:
    """The two directions of one connection.

    Args:
        connection: Socket, connected. It belongs to this object from now on.
    """

    def __init__(self, connection):
        self.socket = connection
        self._received = b""
        self._longest = _LONGEST_OF_A_STRANGER
        self._sending = threading.Lock()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message):
        """Sends one message. Several threads may do so at once.

        Args:
            message: What JSON can represent.

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
            ValueError: If the other side sends no JSON, or too long a line.
        """
        self.socket.settimeout(timeout)
        while b"\n" not in self._received:
            if len(self._received) > self._longest:
                raise ValueError(f"a message is longer than {self._longest} bytes")
            more = self.socket.recv(1 << 16)
            if not more:
                return None
            self._received += more
        line, self._received = self._received.split(b"\n", 1)
        return json.loads(line)

    def authenticate(self, token, is_server, timeout=10):
        """Makes sure that both sides know the token, which itself is never sent.

        Each side sends a random number, and answers the other's with a keyed hash of it.

        Args:
            token: String. The secret.
            is_server: Boolean. Whether this side accepted the connection.
            timeout: Number. The seconds to wait for each answer.

        Raises:
            PermissionError: If the other side does not know the token.
            OSError: If the connection breaks or is silent.
        """
        challenge = secrets.token_hex(16)
        self.send({"challenge": challenge})
        theirs = self._word("challenge", timeout)
        self.send({"proof": _proof(token, is_server, theirs)})
        proof = self._word("proof", timeout)
        if not hmac.compare_digest(proof, _proof(token, not is_server, challenge)):
            raise PermissionError("the other side does not know the token of this examination")
        self._longest = _LONGEST

    def _word(self, key, timeout):
        try:
            message = self.receive(timeout)
            return str(message[key]).encode("ascii").decode()
        except (KeyError, TypeError, ValueError) as error:
            raise PermissionError("the other side is no part of this examination") from error

    def close(self):
        """Closes the connection, also while another thread waits for a message."""
        with contextlib.suppress(OSError):  # it may be closed already
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def _proof(token, is_server, challenge):
    # The role is part of the hash, so that nobody can answer with this side's own proof.
    role = "server" if is_server else "client"
    return hmac.new(token.encode(), f"{role} {challenge}".encode(), hashlib.sha256).hexdigest()
