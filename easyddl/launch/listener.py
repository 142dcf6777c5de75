"""Where the ranks of a job report: a TCP port that accepts those who know the job's token."""

import contextlib
import functools
import json
import resource
import secrets
import selectors
import socket

from easyddl.launch import addresses
from easyddl.launch.connection import Connection, ConnectionLost, keep_alive
from easyddl.launch.reception import Reception


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
        self._addresses = ["127.0.0.1"] if placement.local else addresses.of_interfaces(request.nic)
        if not self._addresses:
            raise RuntimeError(
                "This host has no network interface with an IPv4 address, by which ranks on other "
                "hosts could report."
            )
        _allow_many_connections()
        server = socket.create_server(("127.0.0.1" if placement.local else "", 0), backlog=1024)
        self._port = server.getsockname()[1]
        self._reception = Reception(selector, server, self._token)
        self._silent = set()  # connections without a first message
        self._reported = []  # pairs of a connection and its first message

    def settings(self):
        """What a rank needs to report, as the text of an environment variable."""
        return json.dumps(
            {
                "addresses": [[address, self._port] for address in self._addresses],
                "token": self._token,
                "start_timeout": self._request.start_timeout,
                "host_timeout": self._request.host_timeout,
            }
        )

    def take(self):
        """The connections that have reported since the last call, each with its first message."""
        for sock, _ in self._reception.take():
            link = Connection(sock)
            self._silent.add(link)
            self._selector.register(sock, selectors.EVENT_READ, functools.partial(self._hear, link))
        reported, self._reported = self._reported, []
        return reported

    def close(self):
        """Closes the port, and the connections that have not been taken."""
        self._reception.close()
        for link in list(self._silent):
            self._leave(link)
            link.close()
        for link, _ in self._reported:
            link.close()

    def _hear(self, link):
        try:
            messages = link.receive()
        except ConnectionLost:
            self._leave(link)
            link.close()
            return
        for message in messages[:1]:
            self._leave(link)
            if "alive" in message:
                keep_alive(link.socket, self._request.host_timeout)
            self._reported.append((link, message))

    def _leave(self, link):
        self._silent.remove(link)
        self._selector.unregister(link.socket)


def _allow_many_connections():
    """Raises the limit of open files: each rank has two connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
