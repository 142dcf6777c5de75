"""Stands for a process that a fork server makes: mpirun starts it instead of Python.

    python -I -S rank.py SOCKET,... SCRIPT [ARGUMENT...]

It imports little, because each rank of a job starts one.
"""

import array
import contextlib
import json
import os
import resource
import signal
import socket
import struct
import sys

FORWARDED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
RANK = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")  # of MPICH and of Open MPI
PMI_DESCRIPTOR = "PMI_FD"  # MPICH's connection with its launcher


def main(sockets, *arguments):
    rank = next((int(os.environ[name]) for name in RANK if name in os.environ), 0)
    sockets = sockets.split(",")
    server = socket.socket(socket.AF_UNIX)
    server.connect(sockets[rank % len(sockets)])
    # Not before a signal can be forwarded. Until then it ends this process, as it ends Python's
    # start.
    blocked = [getattr(signal, name) for name in FORWARDED]
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    send_request(server, arguments)
    (process,) = struct.unpack("i", receive(server, 4))
    for number in blocked:
        signal.signal(number, lambda number, _: forward(process, number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
    (status,) = struct.unpack("i", receive(server, 4))
    end_as(status)


def send_request(server, arguments):
    descriptors = [0, 1, 2]
    if PMI_DESCRIPTOR in os.environ:
        descriptors.append(int(os.environ[PMI_DESCRIPTOR]))
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "cpus": list(os.sched_getaffinity(0)),
    }
    data = json.dumps(request).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
    server.sendmsg([struct.pack("i", len(data))], [rights])
    server.sendall(data)


def receive(server, count):
    data = b""
    while len(data) < count:
        more = server.recv(count - len(data))
        if not more:
            sys.exit("The fork server has ended.")
        data += more
    return data


def forward(process, number):
    with contextlib.suppress(ProcessLookupError):  # it has ended, and the server tells how
        os.kill(process, number)


def end_as(status):
    """Ends this process as the server's process has ended."""
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


main(*sys.argv[1:])
