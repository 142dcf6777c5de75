"""Receives the connections of the ranks when they start."""

import selectors
import socket
import time

from easyddl.launch import link
from easyddl.runtime import hosts as host_lists
from easyddl.runtime import launchers

_PROOF = 10.0  # seconds that a process has to prove that it knows the token
_POLL = 0.2  # seconds
_LOCAL = {"localhost", "127.0.0.1", "::1"}


def listen(hosts):
    """Opens the socket to which the ranks connect.

    Args:
        hosts: String such as `h1:4,h2:4`, or `None`.

    Returns:
        A socket. It accepts only connections of this host if all ranks run here.
    """
    server = socket.create_server((_own_address(hosts), 0), backlog=128)
    server.setblocking(False)
    return server


def _own_address(hosts):
    """The address of this host at which the ranks can reach it."""
    for name in _other_hosts(hosts):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((name, 9))  # sends nothing, but chooses the interface
            except OSError:
                continue
            return probe.getsockname()[0]
    return "127.0.0.1"


def _other_hosts(hosts):
    """The names of the hosts that may run ranks and are not this one."""
    if hosts is not None:
        found = host_lists.parse(hosts, "hosts")
    else:
        found = (launchers.allocated() or (None, []))[1]
    own = {*_LOCAL, socket.gethostname(), socket.gethostname().partition(".")[0]}
    return [host.name for host in found if host.name not in own]


class _Peer:
    """A process that has connected and has not proved yet that it knows the token."""

    def __init__(self, sock):
        sock.setblocking(False)
        self.sock = sock
        self.nonce = link.nonce()
        self.reply = b""
        self.deadline = time.monotonic() + _PROOF
        sock.send(self.nonce)  # a new connection has room for it


class Welcome:
    """The reception of one job's ranks. Close it when all ranks have come.

    Args:
        size: Integer. The number of ranks.
        token: String.
        server: The listening socket. The welcome closes it.
    """

    def __init__(self, size, token, server):
        self.connections = {}  # by rank and kind
        self._expected = {
            (rank, kind)
            for rank in range(size)
            for kind in (link.CONTROL, link.STDOUT, link.STDERR)
        }
        self._size, self._token, self._server = size, token, server
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ)

    def missing(self):
        """The ranks that have not come."""
        return sorted({rank for rank, _ in self._expected - set(self.connections)})

    def wait(self):
        """Waits a moment, and takes in the processes that come.

        Raises:
            RuntimeError: If two processes have the same rank, so that they are not one job.
        """
        for key, _ in self._selector.select(_POLL):
            if key.fileobj is self._server:
                self._accept()
            else:
                self._read(key.data)
        for peer in self._peers():
            if time.monotonic() > peer.deadline:
                self._refuse(peer)

    def close(self):
        """Stops listening. The connections that have been accepted stay open."""
        for peer in self._peers():
            self._refuse(peer)
        self._selector.close()
        self._server.close()

    def _peers(self):
        return [key.data for key in list(self._selector.get_map().values()) if key.data]

    def _accept(self):
        try:
            sock, _ = self._server.accept()
        except OSError:  # the process has already gone
            return
        try:
            peer = _Peer(sock)
        except OSError:
            sock.close()
            return
        self._selector.register(sock, selectors.EVENT_READ, peer)

    def _read(self, peer):
        try:
            data = peer.sock.recv(link.REPLY - len(peer.reply))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        peer.reply += data
        if not data:
            self._refuse(peer)
        elif len(peer.reply) == link.REPLY:
            self._verify(peer)

    def _verify(self, peer):
        found = link.verify_reply(self._token, peer.nonce, peer.reply)
        if found is None:
            self._refuse(peer)
            return
        kind, rank, proof = found
        if (rank, kind) not in self._expected or (rank, kind) in self.connections:
            self._refuse(peer)
            raise RuntimeError(
                f"Two processes are rank {rank}, or there are more than {self._size} ranks: the "
                "launcher does not tell each process a rank of its own. Start the ranks with the "
                "mpirun of the MPI that easyddl uses."
            )
        self._selector.unregister(peer.sock)
        peer.sock.send(proof)
        link.configure(peer.sock)
        self.connections[rank, kind] = peer.sock

    def _refuse(self, peer):
        self._selector.unregister(peer.sock)
        peer.sock.close()
