"""A process that has imported Keras, and forks a process for each script that it is asked to run.

    python server.py SOCKET OWNER

It ends when the process OWNER has ended, and so do the processes that it has forked.
"""

import array
import contextlib
import ctypes
import gc
import json
import os
import pathlib
import selectors
import signal
import socket
import struct
import sys
import types

PMI_DESCRIPTOR = "PMI_FD"
DESCRIPTORS = 4  # the standard three, and MPICH's
PR_SET_PDEATHSIG = 1

# What checks import besides the backend, and what has no part in what they test.
MODULES = ("keras", "numpy", "ml_dtypes", "concurrent.futures", "multiprocessing", "tempfile")


def main(path, owner):
    for name in MODULES:
        __import__(name)
    import numpy

    # What is ignored where the tests were started, as by nohup, is not ignored by the ranks.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    # Not after a collection: Python would then run a full one less often than in a new process, and
    # what waits in a destructor of TensorFlow's for the age of an iterator would wait long.
    gc.freeze()
    script = Server(path, int(owner)).serve()  # returns in forked processes alone
    numpy.random.seed()  # Python's own generator has a new seed after a fork
    run(*script)


class Server:
    """Forks processes, tells how they end, and ends those whose clients have ended.

    A connection belongs to one client, which stands for one forked process.
    """

    def __init__(self, path, owner):
        self._selector = selectors.DefaultSelector()
        self._owner = os.pidfd_open(owner)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{path}.new")
        self._listener.listen(64)
        os.rename(f"{path}.new", path)  # a path that exists can be connected to
        self._selector.register(self._owner, selectors.EVENT_READ, sys.exit)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def serve(self):
        """Serves until the owner ends. In a forked process it returns the script's arguments."""
        while True:
            for key, _ in self._selector.select():
                arguments = key.data()
                if arguments is not None:
                    return arguments

    def _accept(self):
        client, _ = self._listener.accept()
        request, descriptors = receive_request(client)
        if request is None:
            client.close()
            return None
        process = os.fork()
        if process == 0:
            self._close(client)
            become(request, descriptors)
            return request["arguments"]
        for descriptor in descriptors:
            os.close(descriptor)
        ended = os.pidfd_open(process)
        try:
            client.sendall(struct.pack("i", process))
        except OSError:
            kill(process)
        self._selector.register(
            client, selectors.EVENT_READ, lambda: self._abandon(client, process)
        )
        self._selector.register(
            ended, selectors.EVENT_READ, lambda: self._tell(client, process, ended)
        )
        return None

    def _abandon(self, client, process):
        """The client has ended, so it was killed: so is its process."""
        self._selector.unregister(client)
        kill(process)

    def _tell(self, client, process, ended):
        _, status = os.waitpid(process, 0)
        self._selector.unregister(ended)
        os.close(ended)
        with contextlib.suppress(OSError):
            client.sendall(struct.pack("i", status))
        if client in self._selector.get_map():
            self._selector.unregister(client)
        client.close()

    def _close(self, client):
        """Closes in a forked process what is the server's."""
        for key in list(self._selector.get_map().values()):
            (os.close if isinstance(key.fileobj, int) else socket.socket.close)(key.fileobj)
        client.close()
        self._selector.close()


def kill(process):
    """Kills a forked process and what it has started, as a launcher does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def receive_request(client):
    """What a client sends, and its descriptors; `None` if it has ended."""
    room = socket.CMSG_SPACE(DESCRIPTORS * array.array("i").itemsize)
    header, ancillary, _, _ = client.recvmsg(4, room, socket.MSG_WAITALL)
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    if len(header) < 4:
        return None, descriptors
    (length,) = struct.unpack("i", header)
    data = client.recv(length, socket.MSG_WAITALL)
    return (json.loads(data), descriptors) if len(data) == length else (None, descriptors)


def become(request, descriptors):
    """Takes what the client has: descriptors, environment, directory, CPUs, and a process group."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    environment = request["environment"]
    if descriptors[3:]:
        # Its number is another one here: that of the client's may be in use.
        os.set_inheritable(descriptors[3], True)
        environment[PMI_DESCRIPTOR] = str(descriptors[3])
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(request["directory"])
    os.sched_setaffinity(0, request["cpus"])


def run(script, *arguments):
    """Runs a script as Python does: as the module `__main__`, which stays until the end."""
    sys.argv = [script, *arguments]
    sys.path[0] = str(pathlib.Path(script).resolve().parent)
    main = types.ModuleType("__main__")
    main.__file__ = script
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    exec(compile(pathlib.Path(script).read_bytes(), script, "exec"), vars(main))


if __name__ == "__main__":
    main(*sys.argv[1:])
