"""A listener that accepts the clients that know its token."""

import collections
import errno
import functools
import selectors
import socket
import typing

from easyddl.transport import protocol
from easyddl.transport.connection import Connection, ConnectionLost
from easyddl.transport.handshake import PendingClient

# Errors that mean: there is no file descriptor or no memory left for another connection.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Arrival(typing.NamedTuple):
    """A client that has connected and knows the token.

    Attributes:
        kind: Integer. The kind of the connection: see `protocol`.
        number: Integer. The number that the client has claimed.
        socket: Non-blocking socket.
        connection: `Connection` if the connection is for messages, else `None`.
        header: Dictionary. The header of the client's first message.
    """

    kind: int
    number: int
    socket: socket.socket
    connection: Connection | None = None
    header: dict[str, typing.Any] | None = None


class Listener:
    """Accepts connections in an event loop, and never blocks.

    If a client sends anything other than the handshake, or is silent, its connection is closed. If
    there are too many clients in the handshake, or no file descriptor is left, the connection of
    the oldest one is closed.

    Args:
        selector: The selector of the loop. The loop calls the data of each ready key.
        server: Listening socket, which this object closes.
        token: String.
        kinds: Sequence. The kinds of connections that clients may claim: see `protocol`.
        largest: Integer. As for `Connection`.
    """

    def __init__(self, selector, server, token, kinds, largest=protocol.LARGEST):
        self.port = server.getsockname()[1]
        self._selector = selector
        self._server = server
        self._token, self._kinds, self._largest = token, kinds, largest
        self._pending = {}  # clients in the handshake, as keys, the oldest first
        self._silent = set()  # connections without a first message
        self._arrived = collections.deque()
        server.setblocking(False)
        self._resume()

    def take(self):
        """Yields an `Arrival` for each client that has connected since the last call.

        Call it in each round of the loop, because it also closes connections that are late.
        """
        for client in [each for each in self._pending if each.is_late]:
            self._refuse(client)
        self._resume()
        while self._arrived:  # arrivals that the caller does not consume are left for `close`
            yield self._arrived.popleft()

    def close(self):
        """Stops listening. Connections that `take` has yielded stay open."""
        self._pause()
        self._server.close()
        for client in list(self._pending):
            self._refuse(client)
        for connection in list(self._silent):
            self._drop(connection)
        for arrival in self._arrived:
            arrival.socket.close()

    def _resume(self):
        if self._server not in self._selector.get_map():
            self._selector.register(self._server, selectors.EVENT_READ, self._accept)

    def _pause(self):
        if self._server in self._selector.get_map():
            self._selector.unregister(self._server)

    def _accept(self):
        try:
            sock, _ = self._server.accept()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._make_room()
            return  # for other errors: the client has already closed the connection
        sock.setblocking(False)
        try:
            client = PendingClient(sock, self._token, self._kinds)
        except OSError:
            sock.close()
            return
        self._pending[client] = None
        receive = functools.partial(self._receive, client)
        self._selector.register(sock, selectors.EVENT_READ, receive)
        if len(self._pending) > protocol.ROOM:
            self._make_room()

    def _make_room(self):
        """Closes the connection of the client that has been in the handshake for the longest."""
        if self._pending:
            self._refuse(next(iter(self._pending)))
        else:
            self._pause()  # until the next round: the waiting client would wake the loop at once

    def _receive(self, client):
        if client not in self._pending:
            return  # it was closed in this round
        try:
            if client.receive():
                self._leave(client)
                self._admit(client)
        except BlockingIOError:
            pass
        except OSError:
            self._refuse(client)

    def _admit(self, client):
        """Accepts a client that knows the token. For messages, waits for the first message."""
        if client.claim[0] != protocol.MESSAGES:
            self._arrived.append(Arrival(*client.claim, client.socket))
            return
        connection = Connection(client.socket, self._largest)
        self._silent.add(connection)
        hear = functools.partial(self._hear, connection, client.claim)
        connection.watch(self._selector, hear)

    def _hear(self, connection, claim):
        try:
            messages = connection.receive()
        except ConnectionLost:
            self._drop(connection)
            return
        if messages:
            self._silent.remove(connection)
            connection.unwatch()
            header = messages[0].header
            self._arrived.append(Arrival(*claim, connection.socket, connection, header))

    def _drop(self, connection):
        self._silent.remove(connection)
        connection.close()

    def _refuse(self, client):
        self._leave(client)
        client.socket.close()

    def _leave(self, client):
        del self._pending[client]
        self._selector.unregister(client.socket)
