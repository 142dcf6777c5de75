"""The handshake at the beginning of a connection: each side proves that it knows a secret token.

The token itself is never sent. Nothing else of a connection is read before the handshake has
succeeded. All of its messages have fixed sizes:

1. The server sends a nonce.
2. The client sends a nonce of its own, its claim, and its proof.
3. The server sends its proof.

A proof is a keyed hash of both nonces and the claim. The side is part of the hash, so that nobody
can answer with the other side's own proof. A claim is what a client says of itself, such as its
rank. Nobody can change it on the way.

What follows is neither encrypted nor signed.
"""

import hmac
import secrets
import socket
import time

LIMIT = 10.0  # seconds that each side gives the other one
NONCE = PROOF = 32  # bytes


class Stranger:
    """A client that has connected to this process and has not proved that it knows the token.

    Args:
        sock: Socket, blocking or non-blocking.
        token: String.
        claim_size: Integer. The number of bytes that the client claims.

    Attributes:
        socket: That socket.
        claim: Bytes, once the client has proved that it knows the token.
    """

    def __init__(self, sock, token, claim_size=0):
        self.socket = sock
        self.claim = None
        self._token = token
        self._end = time.monotonic() + LIMIT
        self._nonce = secrets.token_bytes(NONCE)
        self._reply = b""
        self._size = NONCE + claim_size + PROOF
        sock.sendall(self._nonce)  # a new connection has room for it

    @property
    def is_late(self):
        """Whether its time for the handshake is over."""
        return time.monotonic() > self._end

    def receive(self):
        """Reads once, and never more than what belongs to the handshake.

        Returns:
            Boolean. Whether the client has proved that it knows the token.

        Raises:
            BlockingIOError: If nothing has come, on a non-blocking socket.
            OSError: If the client does not know the token, or the connection has ended.
        """
        self._reply += _receive(self.socket, self._size - len(self._reply))
        if len(self._reply) < self._size:
            return False
        own, claim = self._reply[:NONCE], self._reply[NONCE:-PROOF]
        _check(self._reply[-PROOF:], _proof(self._token, b"client", self._nonce, own, claim))
        self.socket.sendall(_proof(self._token, b"server", self._nonce, own, claim))
        self.claim = claim
        return True

    def wait(self):
        """Waits on a blocking socket until the client has proved that it knows the token.

        Raises:
            OSError: If it does not do so in time.
        """
        _set_limit(self.socket, self._end)
        while not self.receive():
            _set_limit(self.socket, self._end)


def connect(address, token, claim=b"", timeout=5.0):
    """Connects to a server, and makes sure that both sides know the token.

    Args:
        address: Pair of the host's address and the port.
        token: String.
        claim: Bytes, as many as the server expects.
        timeout: Number. The seconds for the connection, without the handshake.

    Returns:
        A blocking socket.

    Raises:
        PermissionError: If the server does not know the token.
        OSError: If there is no server at this address, or the connection has ended.
    """
    sock = socket.create_connection(address, timeout)
    try:
        end = time.monotonic() + LIMIT
        theirs, own = _receive_all(sock, NONCE, end), secrets.token_bytes(NONCE)
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
        _set_limit(sock, end)
        data += _receive(sock, size - len(data))
    return data


def _receive(sock, size):
    data = sock.recv(size)
    if not data:
        raise ConnectionError("the other side closed the connection")
    return data


def _set_limit(sock, end):
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError("the other side is silent")
    sock.settimeout(left)
