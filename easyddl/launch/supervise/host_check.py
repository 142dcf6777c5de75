"""Checks this host for the ranks that it is to run.

The command is `python -m easyddl.launch.supervise.host_check`.

`inspection` starts it on a host whose ranks have not reported. The arguments are the name of the
host of `easyddl run`, and the addresses at which it listens, such as `10.0.0.1:40000`.
"""

import socket
import sys

from easyddl.hosts import granted_hosts
from easyddl.launch.supervise import missing
from easyddl.launch.supervise import rank as _rank  # noqa: F401 - what the launcher starts can be loaded
from easyddl.machine import processes
from easyddl.transport import connection

MARK = "easyddl-check:"  # begins each line that tells a step that has succeeded
LOGIN, DIRECTORY, PYTHON, EASYDDL = "login", "directory", "python", "easyddl"
REACHED, NAMED = "reached", "named"
HOST = "easyddl-host:"  # begins the line that tells the id of the host

_CONNECT = 4.0  # seconds; a lost packet is sent again after 1 and 3 seconds


def main(name, addresses):
    """Prints the steps that succeed, then why no address or not the name leads to the job."""
    print(HOST, processes.host_id())
    print(MARK, EASYDDL, flush=True)
    reasons = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), _CONNECT).close()
        except OSError as error:
            reasons.append(f"{address}: {connection.reason_of(error)}")
        else:
            print(MARK, REACHED, flush=True)
            print(_problem_of(name, int(port)) or f"{MARK} {NAMED}", flush=True)
            return
    print("; ".join(reasons), flush=True)


def _problem_of(name, port):
    """Returns why the name does not lead to the host of `easyddl run`; empty if it does."""
    unknown = missing.lookup_error(name)
    if unknown:
        return f"cannot look up the name of this host: {unknown}"
    try:
        socket.create_connection((name, port), _CONNECT).close()
    except OSError as error:
        there = ", ".join(granted_hosts.look_up(name))
        return f"takes {there} for {name}, the name of this host: {connection.reason_of(error)}"
    return ""


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
