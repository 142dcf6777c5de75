"""A rank of `easyddl.Ranks`: `python -m easyddl.launch.calls.call_server PORT`.

It connects to the caller, which is on the host of `easyddl run`, and runs the functions that the
caller sends until the caller closes the connection. Functions import Keras as a script does. MPI
starts when a function uses it.
"""

import atexit
import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import types

from easyddl.hosts import launched_process
from easyddl.launch.calls import answers, pickling
from easyddl.runtime import console, entry_point
from easyddl.transport import handshake, protocol
from easyddl.transport.connection import Connection, Message, keep_alive

TOKEN = "_EASYDDL_RANKS_TOKEN"  # the environment variable that holds the token

_CALLER = 30.0  # seconds in which a rank reaches its caller
HOST_TIMEOUT = 50  # seconds after which a host that does not answer is lost


class CallServer:
    """This process as a rank.

    Args:
        control: `Connection`.
    """

    def __init__(self, control):
        self._control = control
        # Functions may close or replace standard output and standard error.
        self._outputs = [os.dup(descriptor) for descriptor in (1, 2)]
        self._mark = b""
        os.register_at_fork(after_in_child=self._close_in_child)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)

    def begin(self):
        """Introduces this rank to the caller."""
        version = ".".join(map(str, sys.version_info[:2]))
        facts = {"host": os.uname().nodename, "pid": os.getpid(), "python": version}
        self._control.send(**facts, size=launched_process.size() or 1)
        self._mark = self._control.wait().buffers[0]
        _flush()
        self._write_marks()
        # The `__main__` of the functions, which keeps what they store in it.
        sys.modules["__main__"] = types.ModuleType("__main__")
        threading.Thread(target=_end_with_caller, args=[self._control.socket], daemon=True).start()

    def serve(self):
        """Answers the caller's messages until the caller closes the job."""
        while True:
            asked, call = self._control.wait()
            if asked["ask"] == "close":
                return
            answer = _checked() if asked["ask"] == "check" else _run(asked["settings"], call)
            del call
            _flush()
            self._write_marks()
            self._control.send(*answer.buffers, **answer.header)
            del answer
            self._control.flush(None)

    def _write_marks(self):
        """Marks the end of a call in both outputs: see `CallMarks`."""
        for descriptor in self._outputs:
            left = self._mark
            while left:
                left = left[os.write(descriptor, left) :]

    def _close_in_child(self):
        """Closes the connection in a forked child, such as a data worker."""
        self._control.socket.close()
        # The child's own children call this too, when the numbers may be those of other files.
        outputs, self._outputs = self._outputs, []
        for descriptor in outputs:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _run(settings, call):
    """Runs a function and returns the answer."""
    try:
        entry_point.become_script()
        _enter(settings["directory"], settings["path"])
        console.declare_watched(settings["watched"])
        pickling.add_sources(settings["sources"])
        function, args, kwargs = pickling.loads(call)
        result = function(*args, **kwargs)
    except BaseException as error:
        return answers.of_error(error, _facts())
    return answers.of_result(result, _facts())


def _enter(directory, path):
    """Takes over the caller's working directory and module search path."""
    with contextlib.suppress(OSError):  # another host may not have the directory
        os.chdir(directory)
    if sys.path[: len(path)] != path:
        sys.path[:] = [*path, *(each for each in sys.path if each not in path)]


def _flush():
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # output that C libraries have buffered


def _world():
    # Its import needs nothing that `import easyddl` has not imported.
    from easyddl.runtime import world

    return world


def _facts():
    return {"started": _world().is_started()}


def _checked():
    """Returns whether the ranks can run collectives after a function failed on some of them."""
    problem = None
    try:
        if _world().is_started():
            _world().barrier()
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
    return Message({**_facts(), "problem": problem}, [])


def _end_with_caller(sock):
    """Ends this process at once when the caller has ended or has closed the connection."""
    poll = select.poll()
    poll.register(sock, select.POLLRDHUP)
    poll.poll()
    os.kill(os.getpid(), signal.SIGKILL)


def _exit():
    """Ends this process in order: exit handlers of Python, then those of C, which finalize MPI.

    It skips Python's own finalization in between, which takes seconds for Keras's modules.
    """
    from easyddl.runtime import job_exit

    if not _world().is_started():
        job_exit.uninstall()  # would start MPI only to finalize it
    atexit._run_exitfuncs()
    _flush()
    ctypes.PyDLL(None).exit(0)


def main():
    """Connects to the caller, and serves it."""
    token = os.environ.pop(TOKEN, None)
    if token is None or len(sys.argv) != 2:
        sys.exit("easyddl.launch.calls.call_server is a rank of easyddl.Ranks, which starts it.")
    address = os.environ[launched_process.RUN_ADDRESS], int(sys.argv[1])
    rank = launched_process.rank()
    sock = handshake.connect(address, token, protocol.MESSAGES, rank, _CALLER)
    keep_alive(sock, HOST_TIMEOUT)
    server = CallServer(Connection(sock, largest=None))
    server.begin()
    server.serve()
    _exit()


if __name__ == "__main__":
    main()
