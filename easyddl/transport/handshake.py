"""The handshake at the beginning of a connection: each side proves that it knows a secret token.

The token itself is never sent. Nothing else of a connection is read before the handshake has
succeeded. All of its messages have fixed sizes:

1. The server sends a nonce.
2. The client sends a nonce of its own, its claim, and its proof.
3. The server sends its proof.

A proof is a keyed hash (HMAC) of both nonces and the claim. The side is part of the hash, so that
nobody can answer with the other side's own proof. The claim tells what the connection is for, and
a number such as the client's rank. The hash protects it from changes on the way.

Data after the handshake are neither encrypted nor signed.
"""

import hmac
import os
import socket
import time

from easyddl.transport import protocol
from easyddl.transport.protocol import CLAIM, NONCE, PROOF


class PendingClient:
    """A client that has connected to this process, but has not yet proved that it knows the token.

    Args:
        sock: Non-blocking socket.
        token: String.
        kinds: Tuple. The kinds of connections that the client may claim.

    Attributes:
        socket: The argument `sock`.
        claim: Pair of the kind and the number that the client claims; `None` until the client has
            proved that it knows the token.
    """

    def __init__(self, sock, token, kinds):
        self.socket = sock
        self.claim = None
        self._token, self._kinds = token, kinds
        self._end = time.monotonic() + protocol.LIMIT
        self._nonce = os.urandom(NONCE)
        self._reply = b""
        sock.sendall(self._nonce)  # does not block: the send buffer of a new socket is empty

    @property
    def is_late(self):
        """Whether the client's time for the handshake is over."""
        return time.monotonic() > self._end

    def receive(self):
        """Reads once, and never bytes that follow the handshake.

        Returns:
            Boolean. Whether the client has proved that it knows the token.

        Raises:
            BlockingIOError: If no data have arrived.
            OSError: If the client does not know the token, or the connection has ended.
        """
        size = NONCE + CLAIM.size + PROOF
        self._reply += _receive(self.socket, size - len(self._reply))
        if len(self._reply) < size:
            return False
        own, claim = self._reply[:NONCE], self._reply[NONCE:-PROOF]
        _check(self._reply[-PROOF:], _proof(self._token, b"client", self._nonce, own, claim))
        kind, number = CLAIM.unpack(claim)
        if kind not in self._kinds:
            raise PermissionError("the other side requested another kind of connection")
        self.socket.sendall(_proof(self._token, b"server", self._nonce, own, claim))
        self.claim = kind, number
        return True


def connect(address, token, kind, number=0, timeout=5.0):
    """Connects to a server, and checks that both sides know the token.

    Args:
        address: Pair of the host's address and the port.
        token: String.
        kind: Integer. The kind of the connection: see `protocol`.
        number: Integer. A number that the client claims, such as its rank.
        timeout: Number. The seconds to connect, without the handshake.

    Returns:
        A blocking socket.

    Raises:
        PermissionError: If the server does not know the token.
        OSError: If there is no server at this address, or the connection has ended.
    """
    sock = socket.create_connection(address, timeout)
    try:
        end, claim = time.monotonic() + protocol.LIMIT, CLAIM.pack(kind, number)
        theirs, own = _receive_all(sock, NONCE, end), os.urandom(NONCE)
        sock.sendall(own + claim + _proof(token, b"client", theirs, own, claim))
        _check(_receive_all(sock, PROOF, end), _proof(token, b"server", theirs, own, claim))
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock


def _proof(token, side, *fields):
    return hmac.new(token.encode(), b"".join([side, *fields]), "sha256").digest()


def _check(proof, expected):
    if not hmac.compare_digest(proof, expected):
        raise PermissionError("the other side does not know the token")


def _receive_all(sock, size, end):
    data = b""
    while len(data) < size:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the other side does not answer")
        sock.settimeout(left)
        data += _receive(sock, size - len(data))
    return data


def _receive(sock, size):
    data = sock.recv(size)
    if not data:
        raise ConnectionError("the other side closed the connection")
    return data
