"""The ports of an agent, to which other agents connect to measure the links to its host."""

import contextlib
import os
import re
import selectors
import socket
import threading

from easyddl.transport import protocol
from easyddl.transport.listener import Listener

_PORTS = 3  # a firewall may leave some ports open, so one port is not enough
_RANGES = ("MPIR_CVAR_CH4_OFI_PORT_RANGE", "MPIR_CVAR_CH3_PORT_RANGE", "MPICH_PORT_RANGE")
_SILENCE = 20  # seconds without data after which a connection is closed
_ROUND = 0.2  # the longest pause in seconds between two checks of the clients' deadlines


def open_ports(token):
    """Accepts other agents in one thread, and serves each of them in a separate thread.

    Args:
        token: String. The secret of this examination. Other connections are closed.

    Returns:
        List of integers: the ports.
    """
    selector = selectors.DefaultSelector()
    servers = [_listen() for _ in range(_PORTS)]
    listeners = [Listener(selector, server, token, [protocol.PROBE]) for server in servers]
    threading.Thread(target=_accept, args=[selector, listeners], daemon=True).start()
    return [listener.port for listener in listeners]


def _accept(selector, listeners):
    while True:
        for key, _ in selector.select(_ROUND):
            key.data()
        for listener in listeners:
            for arrival in listener.take():
                arguments = [arrival.socket, arrival.number]
                threading.Thread(target=_serve, args=arguments, daemon=True).start()


def _serve(sock, every):
    """Receives until the end. Answers with one byte for every `every` bytes, unless that is 0."""
    received = answered = 0
    buffer = memoryview(bytearray(1 << 18))
    with sock, contextlib.suppress(OSError):
        sock.settimeout(_SILENCE)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while count := sock.recv_into(buffer):
            received += count
            if every:
                due = received // every - answered
                if due:
                    sock.sendall(bytes(due))
                    answered += due


def _listen():
    """Listens on a port that MPI could use: a port of MPI's range if it is set, else any port."""
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
