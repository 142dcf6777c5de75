"""A job: the launcher that runs, the ranks that have reported, and what happens until all end."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

from easyddl.launch import binding, environment, granted, missing, process_tree, signals, verdict
from easyddl.launch.connection import ConnectionLost
from easyddl.launch.listener import Listener
from easyddl.runtime import termination, version

_AFTER_FAILURE = 2.0  # seconds for the other ranks to end by themselves
_SETTLE = 1.0  # seconds in which all ranks that fail together are noticed
_LAUNCHER = 5.0  # seconds for the launcher to end after its ranks


class JobFailed(Exception):
    """The job ended, or never began, for a reason that is not a rank's."""


class Job:
    """A job of many ranks.

    Args:
        request: `Request`.
        placement: `Placement`.
        line: `CommandLine`.
        screen: `Screen`.
        timeline: String. The directory of trace files, or `None`.
    """

    def __init__(self, request, placement, line, screen, timeline=None):
        self._request = request
        self._placement = placement
        self._line = line
        self._screen = screen
        self._variables = environment.forwarded(os.environ, request, timeline)
        self._selector = selectors.DefaultSelector()
        self._ranks = {}  # by number
        self._alive = {}  # connections that came before their rank's
        self._begun = False  # whether the ranks have been told to run
        self._signal = None  # that this process got first
        self._signal_at = 0.0
        self._told_to_end = False
        self._kill_launcher_at = None
        self._settled_at = None

    def run(self):
        """Runs the job.

        Returns:
            The exit status: 0, that of the first rank that failed, or 128 and the signal that
            this process got.
        """
        with contextlib.ExitStack() as stack:
            stack.callback(self._selector.close)
            self._watch_signals(stack)
            listener = Listener(self._selector, self._request, self._placement)
            try:
                with contextlib.closing(listener):  # nobody needs it once the ranks run
                    self._launch(listener.settings())
                    stack.callback(self._kill_launcher)
                    stack.callback(self._close_connections)
                    self._start(listener)
                self._watch()
            except JobFailed as failure:
                self._end(signal.SIGKILL, 0)
                self._wait_for_launcher()
                self._screen.finish()
                self._screen.tell(str(failure))
                return 128 + self._signal if self._signal else 1
        return self._judge()

    def _watch_signals(self, stack):
        waked, waker = socket.socketpair()
        for end in (waked, waker):
            end.setblocking(False)
            stack.callback(end.close)
        previous = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        stack.callback(signal.set_wakeup_fd, previous)
        for number in (*signals.ENDING, signal.SIGCHLD):
            previous = signal.getsignal(number)
            if number == signal.SIGHUP and previous == signal.SIG_IGN:
                continue  # nohup
            handler = self._note if number in signals.ENDING else lambda *_: None
            stack.callback(signal.signal, number, previous)
            signal.signal(number, handler)
        self._selector.register(waked, selectors.EVENT_READ, lambda: waked.recv(4096))

    def _note(self, number, frame):
        if self._signal is None:
            self._signal, self._signal_at = number, time.monotonic()
            if self._begun:  # otherwise the start looks for it
                self._end(number, self._request.grace)
            return
        is_another = time.monotonic() - self._signal_at > termination.ONE_REQUEST
        if self._begun and (is_another or number == signal.SIGINT):
            self._end(signal.SIGKILL, 0)

    def _launch(self, settings):
        """Starts the launcher in a session of its own: Ctrl-C reaches this process alone."""
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PMI", "OMPI_COMM_WORLD", "MPI_LOCAL", "_EASYDDL_"))
        }
        variables |= environment.network(self._request)
        variables |= self._line.environment | {"EASYDDL_LAUNCH": settings}
        if self._placement.cpus is not None:
            os.sched_setaffinity(0, self._placement.cpus)  # the launcher and the ranks inherit it
        own = os.getpid()
        self._launcher = subprocess.Popen(
            self._line.arguments,
            env=variables,
            stdin=None if _may_read() else subprocess.DEVNULL,
            start_new_session=True,
            # A launcher that waits for a host that is cut off would outlive a killed `easyddl run`.
            preexec_fn=lambda: process_tree.die_with_parent(own),
        )

    def _start(self, listener):
        """Waits for all ranks, compares them with what was asked, and tells them to run."""
        end = time.monotonic() + self._request.start_timeout
        while len(self._ranks) < self._placement.size or None in (
            rank.alive for rank in self._ranks.values()
        ):
            self._select(end - time.monotonic())
            for link, message in listener.take():
                self._admit(link, message)
            status = self._launcher.poll()
            if self._signal is not None:
                raise JobFailed("The job was ended before it had started.")
            if status is not None:
                name = self._line.launcher
                raise JobFailed(
                    f"The job did not start: {name} ended with status {status} before all ranks "
                    f"had reported. See its messages above.{missing.advice(self._placement)}"
                )
            if time.monotonic() > end:
                seconds = f"{self._request.start_timeout:g} s"
                told = missing.text(self._placement, self._ranks.values())
                raise JobFailed(
                    f"The job did not start within {seconds} (`--start-timeout`): {told}"
                )
        hellos = {number: rank.hello for number, rank in self._ranks.items()}
        problem = granted.problem(self._placement, hellos, version.version())
        if problem:
            raise JobFailed(f"The job was not started. {problem}")
        self._order()

    def _admit(self, link, message):
        """Takes a rank that reports."""
        if "alive" in message:
            self._alive[message["alive"]] = link
        else:
            number = message["rank"]
            if message["size"] != self._placement.size or number in self._ranks:
                raise JobFailed(
                    f"The launcher {self._line.arguments[0]} started a rank that says it is rank "
                    f"{number} of {message['size']}, instead of one of {self._placement.size}. It "
                    "may be of another MPI than the library that easyddl uses."
                )
            rank = self._ranks[number] = verdict.Rank(number, message, link)
            self._selector.register(link.socket, selectors.EVENT_READ, lambda: self._receive(rank))
        for number in self._alive.keys() & self._ranks.keys():
            self._watch_alive(self._ranks[number], self._alive.pop(number))

    def _watch_alive(self, rank, link):
        rank.alive = link
        self._selector.register(link.socket, selectors.EVENT_READ, lambda: self._hear_alive(rank))

    def _order(self):
        """Tells each rank what to run, and on which cores."""
        cpus = self._shares()
        for rank in self._ranks.values():
            rank.link.send(
                run={
                    "rank": rank.number,
                    "program": self._request.program,
                    "directory": os.getcwd(),
                    "environment": self._variables,
                    "cpus": cpus.get(rank.number),
                    "output": self._request.output,
                }
            )
        self._begun = True

    def _shares(self):
        """The CPUs that each rank is bound to; none for ranks that are not bound."""
        shares = {}
        for machine in {rank.hello["machine"] for rank in self._ranks.values()}:
            there = [r for r in self._ranks.values() if r.hello["machine"] == machine]
            there.sort(key=lambda rank: rank.number)
            masks = [rank.hello["cpus"] for rank in there]
            parts = binding.partition(masks, there[0].hello["cores"])
            if parts is not None:
                shares.update(zip((rank.number for rank in there), parts, strict=True))
        if self._request.verbose:
            for number, cpus in sorted(shares.items()):
                self._screen.tell(f"rank {number} runs on the CPUs {cpus}")
        return shares

    def _watch(self):
        """Waits until all ranks and the launcher have ended."""
        while not all(rank.is_over for rank in self._ranks.values()):
            self._select(1.0)
            if self._settled_at is not None and time.monotonic() > self._settled_at:
                self._settled_at = None
                self._end(signal.SIGTERM, _AFTER_FAILURE)
            if self._kill_launcher_at is not None and time.monotonic() > self._kill_launcher_at:
                self._kill_launcher()
            if self._launcher.poll() is not None:
                self._expect_end()
        self._wait_for_launcher()

    def _expect_end(self):
        """After the launcher's end its ranks end too, unless their host cannot be reached."""
        if self._kill_launcher_at is None:
            self._kill_launcher_at = time.monotonic() + self._request.host_timeout + _LAUNCHER
        elif time.monotonic() > self._kill_launcher_at:
            for rank in self._ranks.values():
                if not rank.is_over:
                    self._lose(rank, "it did not report its end")

    def _select(self, wait):
        if any(rank.link.unsent for rank in self._ranks.values()):
            wait = min(wait, 0.05)
        for key, _ in self._selector.select(max(0.0, min(wait, 1.0))):
            key.data()
        for rank in self._ranks.values():
            rank.link.flush()

    def _receive(self, rank):
        try:
            for message in rank.link.receive():
                self._take(rank, message)
        except ConnectionLost as error:
            self._selector.unregister(rank.link.socket)
            self._lose(rank, str(error))

    def _take(self, rank, message):
        if "output" in message:
            self._screen.write(rank.number, message["stream"], message["output"])
        elif "exit" in message:
            rank.lost = None
            rank.status, rank.ended_at = message["exit"], time.monotonic()
            rank.ordered = message["ordered"]
            rank.after_kill = message["after_kill"]
            rank.lines, rank.problem = message["lines"], message["problem"]
            rank.link.send(noted=True)
            if rank.after_kill:
                self._settle()  # the rank that asked the launcher to kill all may still end
            elif rank.failed:
                self._end(signal.SIGTERM, _AFTER_FAILURE)

    def _hear_alive(self, rank):
        try:
            rank.alive.receive()
        except ConnectionLost as error:
            self._selector.unregister(rank.alive.socket)
            # One that was closed says nothing: the report of the rank's end may still be on its way
            # behind much output, and the other connection ends after it.
            if error.is_silent:
                self._lose(rank, str(error))

    def _lose(self, rank, reason):
        """Notes that a rank's connection has ended, unless its program had ended before."""
        if rank.is_over:
            return
        rank.lost, rank.ended_at = reason, time.monotonic()
        self._settle()

    def _settle(self):
        """Ends all ranks a little later, when it is known which of them fail together."""
        if self._settled_at is None:
            self._settled_at = time.monotonic() + _SETTLE

    def _end(self, number, grace):
        """Ends all ranks by a signal, and kills those that have not ended after some seconds."""
        if number != signal.SIGKILL and self._told_to_end:
            return
        self._told_to_end = True
        for rank in self._ranks.values():
            if not rank.is_over:
                rank.link.send(signal=number, grace=grace)
        at = time.monotonic() + grace + _LAUNCHER
        self._kill_launcher_at = min(at, self._kill_launcher_at or at)

    def _wait_for_launcher(self):
        if not self._begun:
            self._kill_launcher()  # by itself, it leaves an ssh that hangs behind
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._launcher.wait(_LAUNCHER)

    def _kill_launcher(self):
        if self._launcher.poll() is None:
            process_tree.kill_with_descendants(self._launcher.pid)
        self._launcher.wait()

    def _close_connections(self):
        for link in (
            *self._alive.values(),
            *(rank.alive for rank in self._ranks.values() if rank.alive),
            *(rank.link for rank in self._ranks.values()),
        ):
            link.close()

    def _judge(self):
        """Prints how the job ended, and returns its exit status."""
        self._screen.finish()
        ranks = list(self._ranks.values())
        if self._signal is not None:
            name = signal.Signals(self._signal).name
            killed = verdict.killed_text(ranks, self._request.grace)
            self._screen.tell(f"{name} has ended the job on all hosts.{killed}")
            return 128 + self._signal
        first = verdict.first_failure(ranks)
        if first is not None:
            self._screen.tell(verdict.text_of(first, ranks, self._request.output))
            return verdict.status_of(first)
        statuses = [rank.status for rank in ranks if rank.status]
        launcher = self._launcher.returncode
        if statuses or launcher:
            self._screen.tell(
                f"{self._line.launcher} ended the job with status {launcher}, and no rank "
                "reported a failure of its own. Its messages are above."
            )
            return statuses[0] if statuses else (launcher if launcher > 0 else 128 - launcher)
        return 0


def _may_read():
    """Whether the launcher may read standard input, for rank 0.

    A job in the background of a shell must leave the terminal's input to the shell. The kernel
    does not stop the launcher, which has a session of its own.
    """
    try:
        return not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):  # standard input is closed
        return False
