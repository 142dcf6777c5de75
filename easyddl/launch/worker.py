"""A rank of `easyddl.Ranks`: `python -m easyddl.launch.worker ADDRESS PORT`.

It connects to the caller, and runs the functions that the caller sends until the caller closes the
connection. It imports Keras when it runs the first function. MPI starts when that function uses it.
"""

import atexit
import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import threading
import types

from easyddl.launch import answers, link, pickling
from easyddl.runtime import console, entry_point, launcher


class Worker:
    """This process as a rank.

    Args:
        control: The socket for messages.
        outputs: Pair of sockets, for standard output and standard error.
    """

    def __init__(self, control, outputs):
        self._control = control
        self._inbox = link.Inbox()
        self._outputs = outputs
        self._mark = b""
        os.register_at_fork(after_in_child=self._close_in_child)
        for sock, descriptor in zip(outputs, (1, 2), strict=True):
            os.dup2(sock.fileno(), descriptor)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)

    def begin(self):
        """Introduces this rank to the caller."""
        version = ".".join(map(str, sys.version_info[:2]))
        facts = {"host": os.uname().nodename, "pid": os.getpid(), "python": version}
        self._send([b"ready", json.dumps({**facts, "size": launcher.size() or 1}).encode()])
        _, self._mark = self._inbox.wait(self._control)
        # The functions' own `__main__`, which keeps what they store there.
        sys.modules["__main__"] = types.ModuleType("__main__")
        threading.Thread(target=_end_with_caller, args=[self._control], daemon=True).start()

    def serve(self):
        """Answers the caller's messages until the caller closes the job."""
        while True:
            kind, *parts = self._inbox.wait(self._control)
            if kind == b"close":
                return
            answer = self._run(parts) if kind == b"run" else _checked()
            _flush()
            for sock in self._outputs:
                sock.sendall(self._mark)
            self._send(answer)

    def _run(self, parts):
        """Runs a function and returns the answer."""
        settings, *call = parts
        try:
            entry_point.load_whole_package()
            settings = json.loads(settings)
            _enter(settings["directory"], settings["path"])
            console.declare_watched(settings["watched"])
            pickling.add_sources(settings["sources"])
            function, args, kwargs = pickling.loads(call)
        except BaseException as error:
            return answers.of_error(error, _facts())
        del call, parts
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            return answers.of_error(error, _facts())
        return answers.of_result(result, _facts())

    def _send(self, parts):
        for buffer in link.pack(parts):
            self._control.sendall(buffer)

    def _close_in_child(self):
        """Lets a forked child, such as a data worker, not keep the connections open."""
        for sock in (self._control, *self._outputs):
            sock.close()


def _enter(directory, path):
    """Makes this process find the files and modules that the caller finds."""
    with contextlib.suppress(OSError):  # another host may not have the directory
        os.chdir(directory)
    if sys.path[: len(path)] != path:
        sys.path[:] = [*path, *(each for each in sys.path if each not in path)]


def _flush():
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # what libraries in C have printed


def _world():
    # Its import needs nothing that `import easyddl` has not imported.
    from easyddl.runtime import world

    return world


def _facts():
    return {"started": _world().is_started()}


def _checked():
    """Whether the ranks can still run collectives, after a function has failed on some of them."""
    problem = None
    try:
        if _world().is_started():
            _world().barrier()
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
    return [b"checked", json.dumps({**_facts(), "problem": problem}).encode()]


def _end_with_caller(control):
    """Ends this process at once when the caller has ended or has closed the connection."""
    poll = select.poll()
    poll.register(control, select.POLLRDHUP)
    poll.poll()
    os.kill(os.getpid(), signal.SIGKILL)


def _exit():
    """Ends this process in order: exit handlers of Python, then those of C, which finalize MPI.

    What Python would do between the two, to take every module of Keras apart, takes seconds.
    """
    from easyddl.runtime import job_exit

    if not _world().is_started():
        job_exit.uninstall()  # would start MPI only to finalize it
    atexit._run_exitfuncs()
    _flush()
    ctypes.PyDLL(None).exit(0)


def main():
    """Connects to the caller, and serves it."""
    token = os.environ.pop(link.TOKEN, None)
    if token is None or len(sys.argv) != 3:
        sys.exit("easyddl.launch.worker is a rank of easyddl.Ranks, which starts it.")
    address, rank = (sys.argv[1], int(sys.argv[2])), launcher.rank()
    kinds = (link.CONTROL, link.STDOUT, link.STDERR)
    control, *outputs = (link.connect(address, token, kind, rank) for kind in kinds)
    worker = Worker(control, outputs)
    worker.begin()
    worker.serve()
    _exit()


if __name__ == "__main__":
    main()
