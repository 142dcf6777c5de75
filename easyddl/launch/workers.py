"""The ranks that a caller has started: their launcher, their connections, and how they end."""

import contextlib
import os
import secrets
import selectors
import sys
import threading
import time

from easyddl.launch import answers, launcher_process, link
from easyddl.launch.output_stream import OutputStream
from easyddl.launch.welcome import Welcome, listen

_POLL = 0.1  # seconds between two looks at the clock and at the launcher
_EXIT = 10.0  # seconds that the ranks have for an orderly end
_LAST_WORDS = 3.0  # seconds to receive what the others still say when a rank has ended


class Worker:
    """A rank, as the caller sees it.

    Args:
        rank: Integer.
        control: Socket for messages, non-blocking.
        outputs: Pair of `OutputStream`.
    """

    def __init__(self, rank, control, outputs):
        self.rank, self.control, self.outputs = rank, control, outputs
        self.host, self.pid = "", 0
        self.inbox, self.outbox = link.Inbox(), link.Outbox()
        self.answer = None
        self.has_ended = False
        self.marks = 0  # expected

    @property
    def is_done(self):
        """Whether the answer and all output of the call have come."""
        return self.answer is not None and all(
            each.marks >= self.marks or each.sock.fileno() < 0 for each in self.outputs
        )


class Workers:
    """All ranks of one job, started.

    Args:
        size: Integer. The number of ranks.
        hosts: String such as `h1:4,h2:4`, or `None`.
        env: Dictionary of environment variables for the ranks.
        cpus: List of the CPUs that the ranks may use; `None` for those of this process.
        start_timeout: Float, in seconds.
        options: Sequence of strings. Further options of `easyddl run`.

    Raises:
        RuntimeError: If the ranks do not start.
    """

    def __init__(self, size, hosts, env, cpus, start_timeout, options=()):
        self.reason = None  # why the ranks have ended
        self.busy = threading.Lock()  # held during a call
        self._process = os.getpid()
        self._selector = selectors.DefaultSelector()
        self.workers = []
        self._ended = None  # the first worker whose connection was closed
        token, mark = secrets.token_hex(32), b"\0" + secrets.token_bytes(23)
        server = listen(hosts)
        address, port = server.getsockname()[:2]
        welcome = Welcome(size, token, server)
        try:
            names = [*env, link.TOKEN]
            line = launcher_process.command(size, hosts, names, cpus, start_timeout, options)
            self._launcher = launcher_process.LauncherProcess(
                [*line, "easyddl.launch.worker", address, str(port)],
                {**os.environ, **_not_of_a_notebook(), **env, link.TOKEN: token},
            )
        except BaseException:
            welcome.close()
            self._selector.close()
            raise
        try:
            self._start(welcome, size, mark, time.monotonic() + start_timeout, start_timeout)
        except BaseException as error:
            for sock in welcome.connections.values():
                sock.close()
            self.end(f"they did not start ({type(error).__name__})")
            raise
        finally:
            welcome.close()

    def _start(self, welcome, size, mark, deadline, seconds):
        """Waits until all ranks have come, and greets them."""
        while missing := welcome.missing():
            welcome.wait()
            if self._launcher.has_ended() or time.monotonic() > deadline:
                raise self._not_started(missing, size, seconds)
        for rank in range(size):
            kinds = (link.CONTROL, link.STDOUT, link.STDERR)
            control, *outputs = (welcome.connections[rank, kind] for kind in kinds)
            worker = Worker(rank, control, [OutputStream(sock, mark) for sock in outputs])
            self.workers.append(worker)
            self._selector.register(control, selectors.EVENT_READ, (worker, None))
            for number, sock in enumerate(outputs):
                self._selector.register(sock, selectors.EVENT_READ, (worker, number))
        while any(worker.answer is None for worker in self.workers):
            self.pump(None)
            missing = [worker.rank for worker in self.workers if worker.answer is None]
            if missing and (self.ended_rank() is not None or time.monotonic() > deadline):
                raise self._not_started(missing, size, seconds)
        for worker in self.workers:
            self._greet(worker, size, mark)

    def _greet(self, worker, size, mark):
        facts = answers.facts(worker.answer)
        worker.host, worker.pid = facts["host"], facts["pid"]
        own = ".".join(map(str, sys.version_info[:2]))
        if facts["python"] != own:
            raise RuntimeError(
                f"Rank {worker.rank} on host {worker.host} runs Python {facts['python']}, and this "
                f"process Python {own}. Functions can only be sent between equal versions: install "
                f"Python {own} on that host, at {sys.executable}."
            )
        if facts["size"] != size:
            raise RuntimeError(
                f"{size} ranks were asked for, but the launcher started {facts['size']}. The "
                f"launcher printed:\n{self._launcher.last_lines()}"
            )
        worker.answer = None
        self._send(worker, [b"mark", mark])

    def _not_started(self, missing, size, seconds):
        if not self._launcher.has_ended():
            self._launcher.wait(0.5)  # a rank that fails is the launcher's first news
        how = (
            f"the launcher ended with status {self._launcher.status}"
            if self._launcher.has_ended()
            else f"after {seconds:g} seconds (`start_timeout`)"
        )
        text = f"{len(missing)} of {size} ranks have not started: {how}."
        if said := self._launcher.last_lines():
            text += f" The launcher printed:\n{said}"
        return RuntimeError(text)

    def send(self, message):
        """Sends a message to all ranks, each of which will answer it.

        Args:
            message: List of buffers.
        """
        for worker in self.workers:
            worker.answer = None
            worker.marks += 1
            self._send(worker, message)

    def _send(self, worker, message):
        worker.outbox.put(message)
        self._write(worker)

    def _write(self, worker):
        with contextlib.suppress(BlockingIOError):
            try:
                worker.outbox.send(worker.control)
            except OSError as error:
                if isinstance(error, BlockingIOError):
                    raise
                self._lose(worker)
                return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.outbox else 0)
        if self._selector.get_key(worker.control).events != events:
            self._selector.modify(worker.control, events, (worker, None))

    def pump(self, relay):
        """Waits a moment for messages and output of the ranks, and takes them in.

        Args:
            relay: `Relay` that shows the output, or `None`.
        """
        for key, events in self._selector.select(_POLL):
            worker, number = key.data
            if number is not None:
                self._receive_output(worker, number, relay)
                continue
            if events & selectors.EVENT_WRITE:
                self._write(worker)
            if events & selectors.EVENT_READ and not worker.has_ended:
                self._receive(worker)
        if relay is not None:
            relay.refresh()

    def _receive(self, worker):
        try:
            worker.answer = worker.inbox.receive(worker.control) or worker.answer
        except BlockingIOError:
            pass
        except (OSError, EOFError):
            self._lose(worker)

    def _receive_output(self, worker, number, relay):
        stream = worker.outputs[number]
        try:
            text = stream.receive()
        except BlockingIOError:
            return
        except (OSError, EOFError):
            self._selector.unregister(stream.sock)
            stream.sock.close()
            return
        if relay is not None:
            relay.write(worker.rank, number, text)

    def _lose(self, worker):
        """Notes that a rank has closed its connection."""
        if not worker.has_ended:
            worker.has_ended = True
            self._ended = self._ended or worker
            self._selector.unregister(worker.control)
            worker.control.close()

    def ended_rank(self):
        """The `Worker` whose connection was closed first; `None` while all ranks live.

        The launcher then ends the other ranks. Linux reports the closed connections in the order
        in which they were closed, even if this process is late.
        """
        if self._ended is None and self._launcher.has_ended():
            # A process that a rank has forked may keep the connection open.
            return self.workers[0]
        return self._ended

    def why_ended(self, relay):
        """Finds out which rank has ended first, and what the launcher says about it.

        Args:
            relay: `Relay`, for the last output.

        Returns:
            `answers.Failure`.
        """
        limit = time.monotonic() + _LAST_WORDS
        self.pump(relay)
        while time.monotonic() < limit and not self._launcher.has_ended():
            self.pump(relay)
        self.drain(relay)
        said = self._launcher.last_lines()
        worker, status = self.ended_rank(), self._launcher.status
        text = f"the process {worker.pid} of this rank has ended."
        if status is not None and status < 0:
            text = (
                f"the launcher of the ranks was ended by signal {-status}, and with it this rank."
            )
        if said:
            text += f"\nThe launcher printed:\n{said}"
        return answers.Failure(worker.rank, worker.host, text)

    def drain(self, relay):
        """Takes in what has already arrived."""
        for worker in self.workers:
            for number, stream in enumerate(worker.outputs):
                size = -1
                while stream.sock.fileno() >= 0 and size != stream.received:
                    size = stream.received
                    self._receive_output(worker, number, relay)

    def close(self, relay=None):
        """Ends the ranks in an orderly way: their exit handlers run.

        Args:
            relay: `Relay` that shows their last output, or `None`.
        """
        if self.reason is not None or self._is_forked():
            return
        if not self.busy.acquire(blocking=False):
            self.end("they were closed during a call")
            return
        try:
            for worker in self.workers:
                if not worker.has_ended:
                    self._send(worker, [b"close"])
            limit = time.monotonic() + _EXIT
            while not self._launcher.has_ended() and time.monotonic() < limit:
                self.pump(relay)
            self.drain(relay)
        finally:
            self.busy.release()
            self.end("they were closed")

    def end(self, reason):
        """Ends the ranks at once. Every rank ends when its connection is closed.

        Args:
            reason: String, for the errors of later calls.
        """
        if self.reason is not None or self._is_forked():
            return
        self.reason = reason
        self._close_connections()
        self._launcher.end()

    def _close_connections(self):
        for worker in self.workers:
            for sock in (worker.control, *(each.sock for each in worker.outputs)):
                sock.close()
        self._selector.close()

    def _is_forked(self):
        return os.getpid() != self._process

    def forget(self):
        """Leaves the ranks to the process that has forked this one."""
        self.reason = self.reason or "they belong to the process that forked this one"
        self._close_connections()
        self._launcher.forget()


def _not_of_a_notebook():
    """Replaces the settings of this process that make sense only in a notebook's kernel."""
    inline = "matplotlib_inline" in os.environ.get("MPLBACKEND", "")
    return {"MPLBACKEND": "agg"} if inline else {}
