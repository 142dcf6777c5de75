"""Receives the connections of the ranks when they start."""

import selectors
import socket

from easyddl.launch import link
from easyddl.launch.reception import Reception
from easyddl.runtime import hosts as host_lists
from easyddl.runtime import launchers

_POLL = 0.2  # seconds


def listen(hosts):
    """Opens the socket to which the ranks connect.

    Args:
        hosts: String such as `h1:4,h2:4`, or `None`.

    Returns:
        A socket. It accepts only connections of this host if all ranks run here.
    """
    return socket.create_server((_own_address(hosts), 0), backlog=128)


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
    return [host.name for host in found if not host_lists.is_this_machine(host.name)]


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
        self._size = size
        self._selector = selectors.DefaultSelector()
        self._reception = Reception(self._selector, server, token, link.CLAIM.size)

    def missing(self):
        """The ranks that have not come."""
        return sorted({rank for rank, _ in self._expected - set(self.connections)})

    def wait(self):
        """Waits a moment, and takes in the processes that come.

        Raises:
            RuntimeError: If two processes have the same rank, so that they are not one job.
        """
        for key, _ in self._selector.select(_POLL):
            key.data()
        for sock, claim in self._reception.take():
            self._take(sock, *link.CLAIM.unpack(claim))

    def close(self):
        """Stops listening. The connections that have been accepted stay open."""
        self._reception.close()
        self._selector.close()

    def _take(self, sock, kind, rank):
        if (rank, kind) not in self._expected or (rank, kind) in self.connections:
            sock.close()
            raise RuntimeError(
                f"Two processes are rank {rank}, or there are more than {self._size} ranks: the "
                "launcher does not tell each process a rank of its own. Start the ranks with the "
                "mpirun of the MPI that easyddl uses."
            )
        link.configure(sock)
        self.connections[rank, kind] = sock
