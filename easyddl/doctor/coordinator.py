"""The coordinator: accepts the agents' connections."""

import os
import selectors
import socket

from easyddl.doctor.remote_agent import RemoteAgent
from easyddl.transport import protocol
from easyddl.transport.listener import Listener


class Coordinator:
    """Listens for agents. Use it as a context manager: the agents end with the context.

    Attributes:
        agents: Dictionary of `RemoteAgent` by the name of the host.
        token: String. The secret of this examination.
        port: Integer.
    """

    def __init__(self):
        self.agents = {}
        self.token = os.urandom(16).hex()
        self._selector = selectors.DefaultSelector()
        server = socket.create_server(("", 0), backlog=256)
        self._listener = Listener(self._selector, server, self.token, [protocol.MESSAGES])
        self.port = self._listener.port

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._listener.close()
        self._selector.close()
        for agent in self.agents.values():
            agent.close()

    def accept(self, seconds):
        """Takes the agents that connect, for at most some seconds."""
        for key, _ in self._selector.select(seconds):
            key.data()
        for arrival in self._listener.take():
            host = arrival.header["host"]
            if host in self.agents:
                arrival.connection.close()
            else:
                self.agents[host] = RemoteAgent(arrival.connection)
