"""Where the ranks of a job report: a TCP port that accepts those who know the job's token."""

import hmac
import json
import secrets
import selectors
import socket
import time

from easyddl.launch import addresses
from easyddl.launch.connection import Connection, ConnectionLost, keep_alive

_FOR_FIRST_MESSAGE = 10.0  # seconds


class Listener:
    """Accepts the connections of ranks.

    Args:
        selector: The selector of the job's loop.
        request: `Request`.
        placement: `Placement`.
    """

    def __init__(self, selector, request, placement):
        self._selector = selector
        self._request = request
        self._token = secrets.token_hex(16)
        self._strangers = {}  # connections without a first message, and until when they may wait
        self._addresses = ["127.0.0.1"] if placement.local else addresses.of_interfaces(request.nic)
        if not self._addresses:
            raise RuntimeError(
                "This host has no network interface with an IPv4 address, by which ranks on other "
                "hosts could report."
            )
        self._socket = socket.create_server(
            ("127.0.0.1" if placement.local else "", 0), backlog=1024
        )
        self._socket.setblocking(False)
        selector.register(self._socket, selectors.EVENT_READ, self._accept)
        self.reported = []  # pairs of a connection and its first message, for the job to take

    def settings(self):
        """What a rank needs to report, as the text of an environment variable."""
        port = self._socket.getsockname()[1]
        return json.dumps(
            {
                "addresses": [[address, port] for address in self._addresses],
                "token": self._token,
                "start_timeout": self._request.start_timeout,
                "host_timeout": self._request.host_timeout,
            }
        )

    def close(self):
        """Closes the port."""
        self._selector.unregister(self._socket)
        self._socket.close()
        for link in list(self._strangers):
            self._dismiss(link)

    def _accept(self):
        try:
            sock, _ = self._socket.accept()
        except OSError:
            return  # it has gone already
        link = Connection(sock)
        self._strangers[link] = time.monotonic() + _FOR_FIRST_MESSAGE
        self._selector.register(sock, selectors.EVENT_READ, lambda: self._hear(link))
        for other, end in list(self._strangers.items()):
            if end < time.monotonic():
                self._dismiss(other)

    def _hear(self, link):
        try:
            messages = link.receive()
        except ConnectionLost:
            self._dismiss(link)
            return
        for message in messages[:1]:
            token = str(message.pop("token", ""))
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                self._dismiss(link)
                return
            del self._strangers[link]
            self._selector.unregister(link.socket)
            if "alive" in message:
                keep_alive(link.socket, self._request.host_timeout)
            self.reported.append((link, message))

    def _dismiss(self, link):
        del self._strangers[link]
        self._selector.unregister(link.socket)
        link.close()
