"""What a rank reports of itself before it runs its program."""

import os
import socket

from easyddl.launch import addresses
from easyddl.runtime import hardware, launchers, processes, version


def facts():
    """The facts of this process and its host, as a dictionary for JSON."""
    host = socket.gethostname()
    return {
        "rank": launchers.first_integer("rank"),
        "size": launchers.first_integer("size"),
        "local_rank": launchers.first_integer("local_rank"),
        "host": host,
        # Containers of one machine have one boot, and names of their own.
        "machine": f"{host} {processes.boot_id()}",
        "addresses": addresses.of_interfaces(),
        "version": version.version(),
        "pid": os.getpid(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "cores": [sorted(core) for core in hardware.read().cores],
        "gpus": hardware.gpu_count(),
    }
