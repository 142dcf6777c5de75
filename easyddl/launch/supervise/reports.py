"""The reports of a job's ranks: their content, and the TCP port that receives them."""

import contextlib
import json
import os
import resource
import socket

from easyddl.hosts import launched_process, launchers
from easyddl.machine import addresses, hardware, processes
from easyddl.machine.packages import version_of
from easyddl.runtime import mpi_files
from easyddl.transport import protocol
from easyddl.transport.listener import Listener


class Reports(Listener):
    """Accepts two connections of each rank: one for messages, and one that carries no data.

    Args:
        selector: The selector of the job's loop.
        request: `Request`.
        placement: `Placement`.
    """

    def __init__(self, selector, request, placement):
        self._request = request
        self._hosts = ["127.0.0.1"] if placement.local else addresses.of_interfaces(request.nic)
        if not self._hosts:
            raise RuntimeError(
                "This host has no network interface with an IPv4 address, by which ranks on other "
                "hosts could report."
            )
        _allow_many_connections()
        server = socket.create_server(("127.0.0.1" if placement.local else "", 0), backlog=1024)
        kinds = protocol.MESSAGES, protocol.ALIVE
        super().__init__(selector, server, os.urandom(16).hex(), kinds)

    @property
    def addresses(self):
        """The addresses at which ranks report, such as `10.0.0.1:40000`."""
        return [f"{host}:{self.port}" for host in self._hosts]

    def settings(self):
        """Returns the settings by which a rank reports, as the text of an environment variable."""
        return json.dumps(
            {
                "addresses": [[host, self.port] for host in self._hosts],
                "token": self._token,
                "start_timeout": self._request.start_timeout,
                "host_timeout": self._request.host_timeout,
            }
        )


def facts():
    """Returns the facts that a rank reports about its process and its host, for JSON."""
    return {
        "rank": launchers.first_integer("rank"),
        "size": launchers.first_integer("size"),
        "host": socket.gethostname(),
        "kernel": processes.host_id(),
        "addresses": addresses.of_interfaces(),
        "version": version_of("easyddl"),
        "shared_memory": None if launched_process.is_open_mpi() else mpi_files.free_memory(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "cores": [sorted(core) for core in hardware.cores()],
    }


def _allow_many_connections():
    """Raises the limit of open files: each rank has two connections."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
