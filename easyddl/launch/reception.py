"""The reception of those who connect to a port and know its token."""

import collections
import functools
import selectors

from easyddl.launch.handshake import Stranger


class Reception:
    """Accepts connections in a loop of events, and never waits.

    A process that says anything but the handshake, or is silent, disturbs nobody: it is closed.

    Args:
        selector: The selector of the loop, which calls what is registered with each socket.
        server: Listening socket. The reception closes it.
        token: String.
        claim_size: Integer. The number of bytes that each client claims.
    """

    def __init__(self, selector, server, token, claim_size=0):
        self._selector = selector
        self._server = server
        self._token, self._claim_size = token, claim_size
        self._strangers = set()
        self._received = collections.deque()
        server.setblocking(False)
        selector.register(server, selectors.EVENT_READ, self._accept)

    def take(self):
        """Yields a non-blocking socket and the claim of each client that knows the token.

        Call it in each round of the loop: it also closes those that are late.
        """
        for stranger in [each for each in self._strangers if each.is_late]:
            self._refuse(stranger)
        while self._received:
            stranger = self._received.popleft()
            yield stranger.socket, stranger.claim

    def close(self):
        """Stops listening. The connections that have been taken stay open."""
        self._selector.unregister(self._server)
        self._server.close()
        for stranger in list(self._strangers):
            self._refuse(stranger)
        for stranger in self._received:
            stranger.socket.close()

    def _accept(self):
        try:
            sock, _ = self._server.accept()
        except OSError:
            return  # the process has already gone
        sock.setblocking(False)
        try:
            stranger = Stranger(sock, self._token, self._claim_size)
        except OSError:
            sock.close()
            return
        self._strangers.add(stranger)
        receive = functools.partial(self._receive, stranger)
        self._selector.register(sock, selectors.EVENT_READ, receive)

    def _receive(self, stranger):
        try:
            if stranger.receive():
                self._leave(stranger)
                self._received.append(stranger)
        except BlockingIOError:
            pass
        except OSError:
            self._refuse(stranger)

    def _refuse(self, stranger):
        self._leave(stranger)
        stranger.socket.close()

    def _leave(self, stranger):
        self._strangers.remove(stranger)
        self._selector.unregister(stranger.socket)
