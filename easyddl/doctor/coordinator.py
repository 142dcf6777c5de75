"""The coordinator: accepts the agents' connections, receives their answers, sends heartbeats."""

import secrets
import selectors
import socket
import threading
import time

from easyddl.doctor import network
from easyddl.doctor.agent import HEARTBEAT
from easyddl.doctor.remote_agent import RemoteAgent
from easyddl.transport import protocol
from easyddl.transport.listener import Listener

_HOST = 30  # seconds within which an agent must name its host
_ROUND = 0.1  # the longest pause in seconds between two checks of the time


class Coordinator:
    """Listens for agents. Use it as a context manager: the agents end with the context.

    One thread receives all messages of the agents.

    Attributes:
        agents: Dictionary of `RemoteAgent` by the name of the host.
        token: String. The secret of this examination.
        port: Integer.
    """

    def __init__(self):
        self.agents = {}
        self.token = secrets.token_hex(16)
        self._arrived = threading.Condition()
        self._ended = threading.Event()
        self._selector = selectors.DefaultSelector()
        server = socket.create_server(("", 0), backlog=256)
        kinds = [protocol.MESSAGES]
        self._listener = Listener(self._selector, server, self.token, kinds, first=_HOST)
        self.port = self._listener.port

    def __enter__(self):
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._ended.set()
        self._thread.join()
        self._listener.close()
        for agent in self.agents.values():
            agent.close()
        self._selector.close()

    def addresses(self):
        """Returns the addresses at which agents can connect to this process.

        Returns:
            List of strings: first the addresses of this host's name, then those of its network
            devices, and last the loopback address, for an agent on this host.
        """
        own = [interface["address"] for interface in network.interfaces()]
        name = socket.gethostname()
        named = [a for a in network.look_up([name])[name]["addresses"] if a in own]
        return list(dict.fromkeys([*named, *own, "127.0.0.1"]))

    def wait_for_change(self, seconds):
        """Waits until an agent connects, for at most some seconds."""
        with self._arrived:
            self._arrived.wait(seconds)

    def _run(self):
        beat = time.monotonic() + HEARTBEAT
        while not self._ended.is_set():
            for key, _ in self._selector.select(_ROUND):
                key.data()
            for arrival in self._listener.take():
                self._admit(arrival.connection, arrival.header.get("host"))
            is_time = time.monotonic() > beat
            for agent in self.agents.values():
                agent.check_silence()
                if is_time:  # a heartbeat, by which both sides notice a broken connection
                    agent.ask("time")
            beat = time.monotonic() + HEARTBEAT if is_time else beat

    def _admit(self, connection, host):
        """Adds an agent that has named its host."""
        if not isinstance(host, str) or host in self.agents:
            connection.close()
            return
        with self._arrived:
            self.agents[host] = RemoteAgent(host, connection, self._selector)
            self._arrived.notify_all()
