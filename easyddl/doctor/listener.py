"""The ports on which an agent lets the other agents measure the links to its host."""

import contextlib
import os
import re
import socket
import threading

from easyddl.doctor.messages import Messages
from easyddl.launch.handshake import Stranger

_PORTS = 3  # a firewall may leave some ports open, so that one alone shows little
_RANGES = ("MPIR_CVAR_CH4_OFI_PORT_RANGE", "MPIR_CVAR_CH3_PORT_RANGE", "MPICH_PORT_RANGE")
_SILENCE = 20  # seconds after which a connection is given up


class Listener:
    """Accepts the connections of other agents, each in a thread of its own.

    Args:
        token: String. The secret of this examination. Other connections are closed.
    """

    def __init__(self, token):
        self._token = token
        self._sockets = [_listen() for _ in range(_PORTS)]
        self.ports = [listener.getsockname()[1] for listener in self._sockets]
        for listener in self._sockets:
            threading.Thread(target=self._accept, args=[listener], daemon=True).start()

    def close(self):
        """Closes the ports."""
        for listener in self._sockets:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # also ends `accept` in the other thread
            listener.close()

    def _accept(self, listener):
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection):
        messages = Messages(connection)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            Stranger(connection, self._token).wait()
            every = int(messages.receive(_SILENCE)["answer_every"])
            messages.send({"ready": True})
            _take(connection, every)
        messages.close()


def _take(connection, every):
    """Receives until the end, and answers one byte for every `every` bytes; 0 for no answer."""
    received = answered = 0
    buffer = memoryview(bytearray(1 << 18))
    connection.settimeout(_SILENCE)
    while count := connection.recv_into(buffer):
        received += count
        if every:
            due = received // every - answered
            if due:
                connection.sendall(bytes(due))
                answered += due


def _listen():
    """Listens on a port that MPI could use: of MPI's range if it is set, else any port."""
    for port in _range() or [0]:
        listener = socket.socket()
        try:
            listener.bind(("", port))
            listener.listen(64)
            return listener
        except OSError:
            listener.close()
    raise OSError(f"no port of the range {_range()} is free")


def _range():
    for name in _RANGES:
        found = re.fullmatch(r"(\d+)[:,-](\d+)", os.environ.get(name, "").strip())
        if found:
            return range(int(found[1]), int(found[2]) + 1)
    return None
