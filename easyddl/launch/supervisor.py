"""Supervises the program of one rank: starts it, passes on its output, and reports its end."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

from easyddl.launch import connection, handshake, hello, launcher_agent, process_tree, signals
from easyddl.launch.rank_output import RankOutput
from easyddl.runtime import launcher

_AFTER_KILL = 0.5  # seconds in which a program may end by itself when the launcher kills its ranks
_BEFORE_KILL = 0.2  # seconds from a program's end to the kill of which it has seen the first signs
_LAST_OUTPUT = 1.0  # seconds for output of a program's own children after its end
_ACKNOWLEDGED = 5.0  # seconds for `easyddl run` to note a failure before the launcher learns of it
_MOST_UNSENT = 1 << 20  # bytes that are kept for a slow reader


class Supervisor:
    """One rank's program and its connections to `easyddl run`.

    Args:
        settings: Dictionary. `addresses`, `token`, `start_timeout` and `host_timeout`.
        life: Descriptor of a pipe that ends with the process that the launcher knows.
        agent: Integer. The process that started that one.
    """

    def __init__(self, settings, life, agent):
        self._settings = settings
        self._life = life
        self._agent = agent
        self._selector = selectors.DefaultSelector()
        self._program = None
        self._output = None
        self._ordered = False  # whether the program was told to end
        self._lost = False  # whether `easyddl run` or its host has vanished
        self._killed = False  # whether the launcher has killed the other process
        self._kill_at = None
        self._acknowledged = False

    def run(self):
        """Runs the program.

        Returns:
            Its exit status: 128 and the signal for one that a signal killed.
        """
        for number in (*signals.ENDING, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        wakeup, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        wakeup.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        try:
            order = self._connect()
        except connection.ConnectionLost as error:
            sys.stderr.write(f"easyddl: {error}\n")
            return 1
        if order is None:
            return 1
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: wakeup.recv(4096))
        self._selector.register(self._life, selectors.EVENT_READ, self._launcher_killed)
        if not self._start(order):
            return 1
        while self._program.poll() is None:
            self._step()
        return self._finish()

    def _connect(self):
        """Reports this rank, and waits for what it is to run; `None` if it is not to run."""
        end = time.monotonic() + self._settings["start_timeout"]
        token, facts = self._settings["token"], hello.facts()
        sock = _connect(self._settings["addresses"], token, end)
        alive = handshake.connect(sock.getpeername(), token)
        connection.keep_alive(alive, self._settings["host_timeout"])
        self._alive = connection.Connection(alive)
        self._link = connection.Connection(sock)
        self._alive.send(alive=facts["rank"])
        self._link.send(**facts)
        self._selector.register(self._link.socket, selectors.EVENT_READ, self._receive)
        self._selector.register(self._alive.socket, selectors.EVENT_READ, self._hear_alive)
        # The host that started the job may wait for others; it, too, has a deadline.
        while time.monotonic() < end + 60:
            self._selector.select(1)
            try:
                for message in self._link.receive():
                    if "run" in message:
                        return message["run"]
            except connection.ConnectionLost:
                return None  # `easyddl run` has told why
        raise connection.ConnectionLost("`easyddl run` did not say what to run")

    def _start(self, order):
        """Starts the program. Returns whether it could be started."""
        own = {launcher.SUPERVISOR: str(os.getpid())}
        environment = {**os.environ, **order["environment"], **own}
        try:
            if order["cpus"]:
                os.sched_setaffinity(0, order["cpus"])
            self._output = RankOutput(self._link, order)
            parent = os.getpid()
            self._program = subprocess.Popen(
                order["program"],
                cwd=order["directory"],
                env=environment,
                # MPICH leaves the input of other ranks open, and they would wait for it forever.
                stdin=subprocess.DEVNULL if order["rank"] else None,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                close_fds=False,  # the launcher has opened descriptors for MPI
                preexec_fn=lambda: _prepare(parent),
            )
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            status = 127 if isinstance(error, FileNotFoundError) else 126
            name = order["program"][0]
            hint = f". Did you mean `python {name}`?" if name.endswith(".py") else ""
            self._report(status, [], f"{place}{error.strerror}{hint}")
            self._wait_for_acknowledgement()
            return False
        for stream, name in ((self._program.stdout, "out"), (self._program.stderr, "err")):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(
                stream, selectors.EVENT_READ, lambda s=stream, n=name: self._read(s, n)
            )
        return True

    def _step(self):
        """Waits for one event, at most until the program is to be killed."""
        wait = 1.0 if not self._output.has_unfinished else 0.2
        if self._kill_at is not None:
            wait = min(wait, max(0.0, self._kill_at - time.monotonic()))
        self._select(wait)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill()

    def _select(self, wait):
        if self._link.unsent:
            wait = min(wait, 0.05)
        events = self._selector.select(wait)
        self._link.flush()
        if not events:
            self._output.flush()
        for key, _ in events:
            key.data()
        if self._output.problem and not self._ordered:
            # Its output would be lost: the job ends with the reason.
            self._end(signal.SIGTERM, 2)

    def _read(self, stream, name):
        """Passes on output, unless what was sent before has not left yet."""
        if self._link.unsent > _MOST_UNSENT:
            time.sleep(0.01)
            return
        data = stream.read(1 << 16)
        if data:
            self._output.add(name, data)
        elif data == b"":
            self._selector.unregister(stream)

    def _receive(self):
        try:
            for message in self._link.receive():
                if "signal" in message and self._program is not None:
                    self._end(message["signal"], message["grace"])
                self._acknowledged |= bool(message.get("noted"))
        except connection.ConnectionLost:
            self._lose(self._link)

    def _hear_alive(self):
        try:
            self._alive.receive()
        except connection.ConnectionLost:
            self._lose(self._alive)

    def _lose(self, link):
        """`easyddl run` has ended, or its host has: nobody will end this program later."""
        with contextlib.suppress(KeyError):  # it was lost before
            self._selector.unregister(link.socket)
        self._acknowledged = True
        self._lost = True
        if self._program is not None:
            self._end(signal.SIGTERM, 1)

    def _launcher_killed(self):
        self._selector.unregister(self._life)
        self._killed = True
        if self._kill_at is None:
            self._kill_at = time.monotonic() + _AFTER_KILL

    def _end(self, number, grace):
        """Sends the program a signal, and kills it some seconds later."""
        if number == signal.SIGKILL:
            grace = 0
        elif not self._ordered or number == signal.SIGINT:
            self._program.send_signal(number)
        self._ordered = True
        kill_at = time.monotonic() + grace
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def _kill(self):
        self._ordered = True
        self._kill_at = None
        if self._program.poll() is None:
            _kill_group(self._program.pid)

    def _finish(self):
        """Reports the program's end."""
        code = self._program.returncode
        self._drain()
        if code:
            self._await_kill()
        self._output.close()
        _kill_group(self._program.pid)  # its data workers, if they have outlived it
        status = code if code >= 0 else 128 - code
        if self._output.problem:
            status = 1
        self._report(status, self._output.last(), self._output.problem)
        if status:
            self._wait_for_acknowledgement()
        while self._link.unsent and not self._lost:  # for as long as its reader takes
            self._selector.select(0.05)
            self._link.flush()
            self._receive()
        if self._lost:
            launcher_agent.end(self._agent)
        return status

    def _await_kill(self):
        """Finds out whether a program failed because the launcher was about to kill all ranks.

        Such a program can lose its connection to the launcher before the other process is killed.
        """
        end = time.monotonic() + _BEFORE_KILL
        while not self._killed and time.monotonic() < end:
            self._select(0.05)

    def _report(self, status, lines, problem):
        self._link.send(
            exit=status,
            ordered=self._ordered and not problem,
            after_kill=self._killed,
            lines=lines,
            problem=problem,
        )

    def _drain(self):
        """Reads what is left in the pipes, at the speed at which `easyddl run` takes it."""
        end = time.monotonic() + _LAST_OUTPUT
        while time.monotonic() < end and not self._lost:
            if self._link.unsent > _MOST_UNSENT:
                end = time.monotonic() + _LAST_OUTPUT
            watched = self._selector.get_map()
            if self._program.stdout not in watched and self._program.stderr not in watched:
                return
            self._select(0.05)

    def _wait_for_acknowledgement(self):
        end = time.monotonic() + _ACKNOWLEDGED
        while not self._acknowledged and time.monotonic() < end:
            self._selector.select(0.05)
            self._link.flush()
            self._receive()


def _connect(addresses, token, end):
    """Connects to the first address at which a process knows the token."""
    reasons = {}
    while True:
        for host, port in addresses:
            try:
                return handshake.connect((host, port), token, timeout=3)
            except OSError as error:
                reasons[f"{host}:{port}"] = connection.reason_of(error)
        if time.monotonic() > end:
            told = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
            raise connection.ConnectionLost(
                f"host {socket.gethostname()} cannot reach `easyddl run`, which started it: "
                f"{told}. A firewall may be between them. `--nic` chooses the network."
            )
        time.sleep(0.2)


def _prepare(parent):
    """Runs in the program's process before the program."""
    os.setpgid(0, 0)
    # Whatever happens to the supervisor, no program is left behind.
    process_tree.die_with_parent(parent)
    for number in (*signals.ENDING, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def _kill_group(group):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
