"""Supervises the program of one rank: starts it, passes on its output, and reports its end."""

import contextlib
import errno
import math
import os
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

from easyddl.hosts import granted_hosts, launched_process
from easyddl.launch.output.rank_input import RankInput
from easyddl.launch.output.rank_output import RankOutput
from easyddl.launch.supervise import launcher_agent, reports
from easyddl.machine import process_tree, processes
from easyddl.runtime import mpi_files
from easyddl.transport import connection, handshake, protocol

# The share of `--start-timeout` after which a rank stops trying to connect. `easyddl run` listens
# before it starts a rank, and ends the job after the whole time. The rank must report the reason
# earlier.
_CONNECT = 0.5
_AFTER_KILL = 0.5  # seconds in which a program may end by itself when the launcher kills its ranks
_BEFORE_KILL = 0.2  # seconds from the end of a program that saw the others die to its own kill
_LAST_OUTPUT = 1.0  # seconds for the output of a program's children after its end
_ACKNOWLEDGED = 5.0  # seconds for `easyddl run` to note a failure before the launcher learns of it
_LOOK = 0.1  # seconds between two searches for MPI's files, or this part of the time so far
_PIPE = 1 << 16  # bytes that a pipe holds
_PAUSE = 0.001  # seconds in which a pipe may collect output
_QUIET = 0.2  # seconds without output until an unfinished line is passed on
_MOST_UNSENT = 1 << 20  # bytes that are kept for a slow reader


class Supervisor:
    """One rank's program and its connections to `easyddl run`.

    Args:
        settings: Dictionary. `addresses`, `token`, `start_timeout` and `host_timeout`.
        life: Descriptor of a pipe that ends with the process that the launcher knows.
        agent: Integer. The process that started that one; 0 if it has ended already.
    """

    def __init__(self, settings, life, agent):
        self._settings = settings
        self._life = life
        self._agent, self._agent_name = agent, launcher_agent.name(agent)
        self._selector = selectors.DefaultSelector()
        self._open = contextlib.ExitStack()  # until this process ends
        self._program = None
        self._started = 0.0
        self._read_at = 0.0
        self._input = None
        self._output = None
        self._events = None  # a socket by which the program tells what it has done
        self._is_restarted = False  # whether another start follows if `easyddl run` loses this rank
        self._ordered = False  # whether the program was told to end
        self._lost = False  # whether `easyddl run` or its host has vanished
        self._killed = False  # whether the launcher has killed the other process
        self._files = set()  # MPI's files that a killed program leaves behind
        self._memory = set()  # those among them that the program has mapped
        self._look_at = 0.0  # when to look for them next
        self._problem = None  # a failure outside of the program and its output
        self._is_agent_lost = False  # whether that is the end of the launcher's process here
        self._kill_at = None
        self._acknowledged = False

    def run(self):
        """Runs the program.

        Returns:
            Its exit status; 128 plus the signal's number if a signal killed the program.
        """
        for number in (*processes.SIGNALS, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            order = self._connect()
        except connection.ConnectionLost as error:
            sys.stderr.write(f"easyddl: {error}\n")
            return 1
        if order is None:
            return 1
        self._selector.register(*processes.wake_by_signals(self._open))
        self._selector.register(self._life, selectors.EVENT_READ, self._launcher_killed)
        if not self._start(order):
            return 1
        while self._program.poll() is None:
            self._step()
        return self._finish()

    def _connect(self):
        """Reports this rank, and returns the order to run; `None` if it must not run."""
        begun, seconds = time.monotonic(), self._settings["start_timeout"]
        token, facts = self._settings["token"], reports.facts()
        sock = _connect(self._settings["addresses"], token, begun + _CONNECT * seconds)
        address = sock.getpeername()
        self._run_address = address[0]
        number = facts["rank"] or 0  # without a number, the report says so
        alive = handshake.connect(address, token, protocol.ALIVE, number)
        connection.keep_alive(alive, self._settings["host_timeout"])
        self._alive = connection.Connection(alive)
        self._link = connection.Connection(sock)
        self._link.send(**facts)
        self._link.watch(self._selector, self._receive)
        self._alive.watch(self._selector, self._hear_alive)
        # `easyddl run` may wait for other ranks. It has a deadline too.
        return self._receive_order(begun + seconds + 60)

    def _receive_order(self, end):
        """Waits for the order to run. Before, it may look up a name for `easyddl run`."""
        while time.monotonic() < end:
            message = {}
            try:
                message, _ = self._link.wait(1)
            except TimeoutError:
                pass
            except connection.ConnectionLost:
                return None  # `easyddl run` has printed the reason
            if "run" in message:
                return message["run"]
            if self._has_agent_ended():
                self._is_agent_lost = True
                self._report(1, [], self._agent_end)
                return None
            if "look_up" in message:  # a silent name server delays nothing else
                name = message["look_up"]
                threading.Thread(target=self._look_up, args=[name], daemon=True).start()
        raise connection.ConnectionLost("`easyddl run` did not say what to run")

    def _look_up(self, name):
        self._link.send(looked_up=granted_hosts.look_up(name))

    def _has_agent_ended(self):
        """Returns whether the other process has said so. It is asked before the program runs."""
        is_readable = select.select([self._life], [], [], 0)[0]
        return bool(is_readable) and os.read(self._life, 1) == launcher_agent.ENDED

    @property
    def _agent_end(self):
        name = f", {self._agent_name}," if self._agent_name else ""
        return f"the launcher's process on this host{name} has ended"

    def _start(self, order):
        """Starts the program. Returns whether it could be started."""
        own = {
            launched_process.SUPERVISOR: str(os.getpid()),
            launched_process.RUN_ADDRESS: self._run_address,
        }
        self._is_restarted = order["is_restarted"]
        if self._is_restarted:
            own[launched_process.EVENTS] = self._open_events()
        environment = {**os.environ, **order["environment"], **own}
        try:
            self._output = RankOutput(self._link, order)
        except OSError as error:
            problem = f"`--output {order['output']}`: {error.filename}: {error.strerror}"
            self._report(1, [], problem)
            return False
        try:
            if order["cpus"]:
                os.sched_setaffinity(0, order["cpus"])
            parent = os.getpid()
            self._started = time.monotonic()
            self._program = _open(
                order["program"],
                cwd=order["directory"],
                env=environment,
                stdin=subprocess.PIPE if order["input"] else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,  # the selector does not see what Python's buffer holds
                close_fds=False,  # the launcher has opened descriptors for MPI
                preexec_fn=lambda: _prepare(parent),
            )
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            status = 127 if isinstance(error, FileNotFoundError) else 126
            problem = f"{place}{error.strerror}{_hint(order['program'][0])}"
            self._report(status, [], problem)
            return False
        for stream, name in ((self._program.stdout, "out"), (self._program.stderr, "err")):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(
                stream, selectors.EVENT_READ, lambda s=stream, n=name: self._read(s, n)
            )
        if order["input"]:
            self._input = RankInput(self._program.stdin, self._selector, self._link)
        self._receive()  # messages that arrived together with the order
        return True

    def _open_events(self):
        """Makes the socket for events, and returns its name among Linux's abstract ones."""
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
        self._events = self._open.enter_context(socket.socket(socket.AF_UNIX, kind))
        self._events.bind("")  # the kernel chooses the name
        self._selector.register(self._events, selectors.EVENT_READ, self._pass_events_on)
        return self._events.getsockname()[1:].decode()

    def _pass_events_on(self):
        with contextlib.suppress(BlockingIOError):
            while True:
                self._link.send(event=self._events.recv(64).decode())

    def _step(self):
        """Waits for one event, at most until the program is to be killed."""
        wait = 1.0 if not self._output.has_unfinished else _QUIET
        if self._kill_at is not None:
            wait = min(wait, max(0.0, self._kill_at - time.monotonic()))
        wait = min(wait, self._look_for_files())
        self._select(wait)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill()

    def _look_for_files(self):
        """Notes MPI's files while the program and the agent run: killed, they name no files.

        MPI starts early in most programs. One that runs for long without MPI is asked rarely.

        Returns:
            Number. The seconds until it should be called again.
        """
        now = time.monotonic()
        if self._memory:
            return math.inf
        if now >= self._look_at:
            self._note_files()
            self._look_at = now + _LOOK * max(1.0, now - self._started)
        return self._look_at - now

    def _select(self, wait):
        events = self._selector.select(wait)
        if not events and time.monotonic() >= self._read_at + _QUIET:
            self._output.flush()
        for key, _ in events:
            key.data()
        if self._output.problem and not self._ordered:
            # The output would be lost, so the job ends with the reason.
            self._end(signal.SIGTERM, 2)

    def _read(self, stream, name):
        """Passes on output, unless too much of the earlier output is still unsent."""
        if self._link.unsent > _MOST_UNSENT:
            time.sleep(0.01)
            return
        data = stream.read(_PIPE)
        if data:
            self._read_at = time.monotonic()
            self._output.add(name, data)
            if len(data) < _PIPE // 2:  # handle many short lines together
                time.sleep(_PAUSE)
        elif data == b"":
            self._selector.unregister(stream)

    def _receive(self):
        try:
            for message in self._link.receive():
                self._take(*message)
        except connection.ConnectionLost:
            self._lose(self._link)

    def _take(self, message, buffers):
        if "signal" in message and self._program is not None:
            if message["grace"] is None:
                self._signal(message["signal"])
            else:
                self._end(message["signal"], message["grace"])
        if "input" in message and self._input is not None:
            self._input.add(buffers[0])
        self._acknowledged |= bool(message.get("noted"))

    def _hear_alive(self):
        try:
            self._alive.receive()
        except connection.ConnectionLost:
            self._lose(self._alive)

    def _lose(self, link):
        """Ends the program after the loss of `easyddl run`, which can no longer end it."""
        link.unwatch()
        self._acknowledged = True
        self._lost = True
        if self._program is not None:
            # Before another start, SIGTERM would make the program save a backup.
            number = signal.SIGKILL if self._is_restarted else signal.SIGTERM
            self._end(number, 1)

    def _launcher_killed(self):
        self._selector.unregister(self._life)
        if os.read(self._life, 1) == launcher_agent.ENDED and not self._ordered:
            self._problem, self._is_agent_lost = self._agent_end, True
            if self._program is not None:
                self._end(signal.SIGTERM, 2)
            return
        self._killed = True
        self._note_files()
        if self._kill_at is None:
            self._kill_at = time.monotonic() + _AFTER_KILL

    def _note_files(self):
        """Records MPI's files that the program would leave behind if it were killed now."""
        if self._program is not None:
            for process in [self._program.pid, *process_tree.descendants(self._program.pid)]:
                self._memory |= mpi_files.of_rank(process)
        self._files |= self._memory | mpi_files.of_agent(self._agent)

    def _end(self, number, grace):
        """Sends the program a signal, and kills it some seconds later."""
        self._note_files()
        if number == signal.SIGKILL:
            grace = 0
        elif not self._ordered or number == signal.SIGINT:
            self._signal(number)
        self._ordered = True
        kill_at = time.monotonic() + grace
        self._kill_at = kill_at if self._kill_at is None else min(self._kill_at, kill_at)

    def _signal(self, number):
        """Sends a signal to the program, or to the processes that handle it.

        A shell script does not pass on signals, and would end before the rank that it has started.
        It may handle the signal itself, to clean up at its end. Workers of a rank handle most
        signals.
        """
        own = self._program.pid
        started = [own, *process_tree.descendants(own)]
        handling = [each for each in started if processes.handles(each, number)]
        handling = [each for each in handling if not processes.is_worker(each)]
        programs = [each for each in handling if not processes.is_shell(each)]
        if self._program.poll() is None:
            for each in programs or handling[:1] or [own]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, number)

    def _kill(self):
        self._ordered = True
        self._kill_at = None
        if self._program.poll() is None:
            _kill_group(self._program.pid)

    def _finish(self):
        """Reports the program's end."""
        code = self._program.returncode
        self._output.expect_nothing_else()
        if self._input is not None:
            self._input.close()
        self._drain()
        if self._events is not None:
            self._pass_events_on()
        if code:
            self._await_kill()
        self._output.close(failed=code != 0)
        _kill_group(self._program.pid)  # data workers that have outlived it
        if code:
            if code < 0 and not self._memory:  # it may have crashed while MPI started
                self._files |= mpi_files.unused(time.monotonic() - self._started)
            mpi_files.remove(self._files)
        problem = self._problem or self._output.problem
        status = 1 if problem else code if code >= 0 else 128 - code
        self._report(status, self._output.last(), problem)
        while self._link.unsent and not self._lost:  # for as long as the reader needs
            self._selector.select(0.05)
            self._receive()
        if self._lost:
            launcher_agent.end(self._agent)
        return status

    def _await_kill(self):
        """Waits briefly for the launcher's kill, of which the failure may be the first sign.

        The program can lose its connection to the launcher before this rank is killed.
        """
        end = time.monotonic() + _BEFORE_KILL
        while not self._killed and time.monotonic() < end:
            self._select(0.05)

    def _report(self, status, lines, problem):
        self._link.send(
            end={
                "status": status,
                "ordered": self._ordered and not problem,
                "after_kill": self._killed,
                "lines": lines,
                "problem": problem,
                "is_agent_lost": self._is_agent_lost,
            }
        )
        if status:
            self._wait_for_acknowledgement()

    def _drain(self):
        """Reads the rest of the pipes, as fast as `easyddl run` takes the output."""
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
            self._receive()


def _connect(addresses, token, end):
    """Returns a socket to the first address whose process proves that it knows the token."""
    reasons = {}
    while True:
        for host, port in addresses:
            try:
                return handshake.connect((host, port), token, protocol.MESSAGES, timeout=3)
            except OSError as error:
                reasons[f"{host}:{port}"] = connection.reason_of(error)
        if time.monotonic() > end:
            told = "; ".join(f"{address}: {reason}" for address, reason in reasons.items())
            raise connection.ConnectionLost(
                f"host {socket.gethostname()} cannot reach `easyddl run`, which started it: "
                f"{told}. A firewall may be between them. `--nic` chooses the network."
            )
        time.sleep(0.2)


def _open(program, **arguments):
    """Starts a program. As in execvp(3), a shell runs a script without a line `#!`."""
    try:
        return subprocess.Popen(program, **arguments)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        return subprocess.Popen(["/bin/sh", *program], **arguments)


def _hint(name):
    """Returns what the user may have meant by a program that cannot be started."""
    first, *others = name.split() or [""]
    if others and shutil.which(first):  # a whole command line in quotation marks
        return f". Did you mean `{name}` without quotation marks?"
    return f". Did you mean `python {name}`?" if name.endswith(".py") else ""


def _prepare(parent):
    """Runs in the program's process before the program."""
    os.setpgid(0, 0)
    # However the supervisor ends, the program ends with it.
    process_tree.die_with_parent(parent)
    for number in (*processes.SIGNALS, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def _kill_group(group):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
