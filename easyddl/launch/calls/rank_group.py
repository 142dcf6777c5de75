"""The ranks that a caller has started: their launcher, their connections, and how they end."""

import codecs
import contextlib
import functools
import os
import selectors
import socket
import sys
import threading
import time

from easyddl.hosts import launchers
from easyddl.launch.calls import call_server, run_process
from easyddl.launch.calls.rank_error import RankError
from easyddl.machine import processes
from easyddl.machine.background_program import BackgroundProgram
from easyddl.transport import protocol
from easyddl.transport.connection import Connection, ConnectionLost, keep_alive
from easyddl.transport.listener import Listener

_POLL = 0.1  # seconds between two checks of the deadline and the launcher
_EXIT = 10.0  # seconds that the ranks have for an orderly end, after their last output
_STREAMS = "out", "err"
_LAST_WORDS = 10.0  # seconds without output after which a launcher whose ranks end is given up
_GRACE = 5.0  # seconds between asking the launcher to end and killing it
_LAST_LINES, _LAST_BYTES = 20, 1 << 14  # of the launcher's output


class GroupRank:
    """The caller's state of a rank.

    Args:
        number: Integer. Its number among the ranks.

    Attributes:
        host: String. The name of its host.
        pid: Integer. The process id on that host.
        control: `Connection` for messages, or `None` before it has arrived.
        decoders: Dictionary of incremental decoders, by the name of the output stream.
        marks: Integer. How many marks both outputs have: see `CallMarks`.
        calls: Integer. How many marks they will have when the current call is done.
        answer: `Message`. The rank's answer to the call, or `None`.
    """

    def __init__(self, number):
        self.number = number
        self.host, self.pid = "", 0
        self.control = None
        self.decoders = {
            name: codecs.getincrementaldecoder("utf-8")("replace") for name in _STREAMS
        }
        self.marks = 0
        self.calls = 1  # the first mark follows the connection
        self.answer = None
        self.has_ended = False

    @property
    def is_done(self):
        """Whether the answer and all output of the call have arrived."""
        return self.answer is not None and self.marks >= self.calls


class RankGroup:
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
        self._selector = selectors.DefaultSelector()
        self.ranks = [GroupRank(number) for number in range(size)]
        self._ended = None  # the first rank whose connection was closed
        self.relay = None  # `Relay` that shows the output of the current call
        self.heard_at = 0.0  # when the last message or output has arrived
        self._mark = b"\0" + os.urandom(23)
        token = os.urandom(32).hex()
        server = listen(hosts, env, options)
        kinds = [protocol.MESSAGES]
        listener = Listener(self._selector, server, token, kinds, largest=None)
        output, output_of_run = socket.socketpair()
        self._output = Connection(output, largest=None)
        try:
            names = [*env, call_server.TOKEN]
            calls = output_of_run.fileno()
            line = run_process.command(size, hosts, names, cpus, start_timeout, options, calls)
            self._launcher = BackgroundProgram(
                [*line, call_server.__name__, str(listener.port)],
                env={**os.environ, **_not_of_a_notebook(), **env, call_server.TOKEN: token},
                pass_fds=[calls],
            )
        except BaseException:
            listener.close()
            self._output.close()
            self._selector.close()
            raise
        finally:
            output_of_run.close()
        self._output.send(self._mark)
        self._output.watch(self._selector, self._receive_output)
        try:
            with contextlib.closing(listener):
                self._start(listener, time.monotonic() + start_timeout, start_timeout)
        except BaseException as error:
            self.end(f"they did not start ({type(error).__name__})")
            raise

    def _start(self, listener, deadline, seconds):
        """Waits until all ranks have connected and reported."""
        size = len(self.ranks)
        while missing := [each.number for each in self.ranks if each.control is None]:
            self.pump()
            for arrival in listener.take():
                self._admit(arrival)
            if self._launcher.has_ended() or time.monotonic() > deadline:
                raise self._not_started(missing, size, seconds)

    def _admit(self, arrival):
        """Takes the connection of a rank, and sends it the mark."""
        host, size, python = (arrival.header[name] for name in ("host", "size", "python"))
        if size != len(self.ranks):
            arrival.connection.close()
            raise RuntimeError(
                f"{len(self.ranks)} ranks were asked for, but the launcher started {size}. "
                f"The launcher printed:\n{self._last_lines()}"
            )
        rank = self.ranks[arrival.number]
        if rank.control is not None:
            arrival.connection.close()
            raise RuntimeError(
                f"Two processes are rank {rank.number}: the launcher does not tell each process a "
                "rank of its own. Start the ranks with the mpirun of the MPI that easyddl uses."
            )
        rank.host, rank.pid, rank.control = host, arrival.header["pid"], arrival.connection
        own = ".".join(map(str, sys.version_info[:2]))
        if python != own:
            raise RuntimeError(
                f"Rank {arrival.number} on host {host} runs Python {python}, and this process "
                f"Python {own}. Functions can only be sent between equal versions: install Python "
                f"{own} on that host, at {sys.executable}."
            )
        keep_alive(arrival.socket, call_server.HOST_TIMEOUT)
        rank.control.watch(self._selector, functools.partial(self._receive, rank))
        rank.control.send(self._mark)

    def _not_started(self, missing, size, seconds):
        if not self._launcher.has_ended():
            self._launcher.wait(0.5)  # the launcher ends soon after a rank that fails
        how = (
            f"the launcher {processes.end_of(self._launcher.status)}"
            if self._launcher.has_ended()
            else f"after {seconds:g} seconds (`start_timeout`)"
        )
        text = f"{len(missing)} of {size} ranks have not started: {how}."
        if said := self._last_lines():
            text += f" The launcher printed:\n{said}"
        return RuntimeError(text)

    def _last_lines(self):
        """Returns the last lines that the launcher has printed, as one string."""
        return "\n".join(self._launcher.output(_LAST_BYTES).rstrip().splitlines()[-_LAST_LINES:])

    def send(self, *buffers, **header):
        """Sends a message to all ranks, each of which will answer it.

        Args:
            *buffers: Buffers of bytes.
            **header: What JSON can represent.
        """
        for rank in self.ranks:
            rank.answer = None
            rank.calls += 1
            rank.control.send(*buffers, **header)

    def pump(self):
        """Waits a moment for messages and output of the ranks, and handles them."""
        for key, _ in self._selector.select(_POLL):
            key.data()
        if self.relay is not None:
            self.relay.refresh()

    def _receive(self, rank):
        if rank.has_ended:
            return
        try:
            for message in rank.control.receive():
                rank.answer, self.heard_at = message, time.monotonic()
        except ConnectionLost:
            self._lose(rank)

    def _receive_output(self):
        try:
            for message in self._output.receive():
                self._take_output(message)
        except ConnectionLost:  # the launcher has ended
            self._output.unwatch()

    def _take_output(self, message):
        """Shows a piece of a rank's output, or counts a mark."""
        rank = self.ranks[message.header["rank"]]
        self.heard_at = time.monotonic()
        if "mark" in message.header:
            rank.marks = message.header["mark"]
            return
        stream = message.header["call_output"]
        text = rank.decoders[stream].decode(bytes(message.buffers[0]))
        if self.relay is not None:
            self.relay.write(rank.number, _STREAMS.index(stream), text)

    def _lose(self, rank):
        """Notes that a rank has closed its connection."""
        if not rank.has_ended:
            rank.has_ended = True
            self._ended = self._ended or rank
            rank.control.close()

    def ended_rank(self):
        """Returns the `GroupRank` whose connection was closed first; `None` while all ranks live.

        The launcher then ends the other ranks. Linux reports the closed connections in the order
        in which they were closed, even if this process is late.
        """
        if self._ended is None and self._launcher.has_ended():
            # A process that a rank has forked may keep the connection open.
            return self.ranks[0]
        return self._ended

    def why_ended(self):
        """Returns which rank ended first, with what the launcher printed, as a `RankError`."""
        self._pump_until_end(_LAST_WORDS)
        said = self._last_lines()
        rank, status = self.ended_rank(), self._launcher.status
        text = f"the process {rank.pid} of this rank has ended."
        if status is not None and status < 0:
            end = processes.end_of(status)
            text = f"the launcher of the ranks {end}, and with it this rank."
        if said:
            text += f"\nThe launcher printed:\n{said}"
        return RankError(text, rank.number, rank.host)

    def _pump_until_end(self, seconds):
        """Handles all output until the launcher has ended, or has sent nothing for some time."""
        begun = time.monotonic()
        self.pump()
        while not self._launcher.has_ended():
            if time.monotonic() > max(begun, self.heard_at) + seconds:
                break
            self.pump()
        with contextlib.suppress(TimeoutError, ConnectionLost):
            while True:
                self._take_output(self._output.wait(0))

    def close(self, relay=None):
        """Ends the ranks in an orderly way: their exit handlers run.

        Args:
            relay: `Relay` that shows their last output, or `None`.
        """
        if self.reason is not None:
            return
        if not self.busy.acquire(blocking=False):
            self.end("they were closed during a call")
            return
        try:
            for rank in self.ranks:
                rank.control.send(ask="close")
            self.relay = relay
            self._pump_until_end(_EXIT)
        finally:
            self.busy.release()
            self.end("they were closed")

    def end(self, reason):
        """Ends the ranks at once. Every rank ends when its connection is closed.

        Args:
            reason: String, for the errors of later calls.
        """
        if self.reason is not None:
            return
        self.reason = reason
        self._close_connections()
        self._launcher.end_within(_GRACE)  # it ends the ranks on all hosts
        self._launcher.close()

    def _close_connections(self):
        for rank in self.ranks:
            if rank.control is not None:
                rank.control.socket.close()
        self._output.socket.close()
        self._selector.close()

    def forget(self):
        """Leaves the ranks to the process that has forked this one."""
        self.reason = self.reason or "they belong to the process that forked this one"
        self._close_connections()
        self._launcher.forget()


def listen(hosts, env=None, options=()):
    """Opens the socket to which the ranks connect.

    Args:
        hosts: String such as `h1:4,h2:4`, or `None`.
        env: Dictionary. What the environment of `easyddl run` has besides that of this process.
        options: Sequence of strings. Options of `easyddl run`, which may name hosts.

    Returns:
        A socket. It accepts only connections of this host unless hosts are named or allocated.
    """
    environment = {**os.environ, **(env or {})}
    is_local = hosts is None and not options and launchers.allocated(environment) is None
    return socket.create_server(("127.0.0.1" if is_local else "", 0), backlog=128)


def _not_of_a_notebook():
    """Replaces the settings of this process that make sense only in a notebook's kernel."""
    inline = "matplotlib_inline" in os.environ.get("MPLBACKEND", "")
    return {"MPLBACKEND": "agg"} if inline else {}
