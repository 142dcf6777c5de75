"""Accepts the agents' connections, and keeps them alive."""

import contextlib
import secrets
import socket
import threading

from easyddl.doctor import network
from easyddl.doctor.agent import HEARTBEAT
from easyddl.doctor.messages import Messages
from easyddl.doctor.remote_agent import RemoteAgent
from easyddl.launch.handshake import Stranger

_HOST = 30  # seconds that an agent has to name its host


class Coordinator:
    """Listens for agents. Use it as a context: at its end, the agents end.

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
        self._listener = socket.socket()
        self._listener.bind(("", 0))
        self._listener.listen(256)
        self.port = self._listener.getsockname()[1]

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, *error):
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # also ends `accept` in the other thread
        self._listener.close()
        with self._arrived:
            agents = list(self.agents.values())
        for agent in agents:
            agent.close()

    def addresses(self):
        """The addresses where agents can find this process.

        Returns:
            List of strings: those that this host's name stands for, then those of its devices,
            then the loopback, for an agent on this host.
        """
        own = [interface["address"] for interface in network.interfaces()]
        name = socket.gethostname()
        named = [a for a in network.look_up([name])[name]["addresses"] if a in own]
        return list(dict.fromkeys([*named, *own, "127.0.0.1"]))

    def wait_for_change(self, seconds):
        """Waits until an agent arrives, or for some time."""
        with self._arrived:
            self._arrived.wait(seconds)

    def _accept(self):
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._welcome, args=[connection], daemon=True).start()

    def _welcome(self, connection):
        messages = Messages(connection)
        try:
            Stranger(connection, self.token).wait()
            host = messages.receive(_HOST)["host"]
        except (OSError, ValueError, KeyError, TypeError):
            messages.close()  # not an agent of this examination
            return
        with self._arrived:
            if host in self.agents or self._ended.is_set():
                messages.close()
                return
            self.agents[host] = RemoteAgent(host, messages)
            self._arrived.notify_all()

    def _beat(self):
        """Asks each agent for its time now and then, so that both sides notice a broken link."""
        while not self._ended.wait(HEARTBEAT):
            for agent in list(self.agents.values()):
                agent.ask("time")
