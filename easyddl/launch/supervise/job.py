"""A job: its launcher, the ranks that have reported, and the supervision until all have ended."""

import contextlib
import functools
import itertools
import os
import selectors
import signal
import subprocess
import time

from easyddl.hosts import granted_hosts
from easyddl.launch.output import error_text, standard_input
from easyddl.launch.output.screen import Screen
from easyddl.launch.start import binding, environment
from easyddl.launch.supervise import missing, verdict
from easyddl.launch.supervise.inspection import Inspections
from easyddl.launch.supervise.reports import Reports
from easyddl.machine import process_tree, processes
from easyddl.machine.packages import version_of
from easyddl.runtime import termination
from easyddl.transport import protocol
from easyddl.transport.connection import ENDED, Connection, ConnectionLost, keep_alive

_AFTER_FAILURE = 2.0  # seconds for the other ranks to end by themselves
_SETTLE = 1.0  # seconds in which all ranks that fail together are noticed
_LAUNCHER = 5.0  # seconds for the launcher to end after its ranks
_LATE = 3.0  # seconds after which hosts that have not reported are inspected
_NAMES = 2.0  # seconds for ranks to look up the names of their hosts
_INSPECTION = 10.0  # seconds for an inspection after the launcher's end
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS)


class JobFailed(Exception):
    """The job ended, or did not begin, for a reason other than the failure of a rank."""


class Job:
    """A job of many ranks.

    Args:
        request: `Request`.
        placement: `Placement`.
        line: `CommandLine`.
        calls: `CallOutput` if the ranks are those of `easyddl.Ranks`, or `None`.
        hear: Function of the events of a start (see `Restarts`), which may be started again; `None`
            for a job with one start.
    """

    def __init__(self, request, placement, line, calls=None, hear=None):
        self._request = request
        self._placement = placement
        self._line = line
        self._screen = Screen(placement.size, request.prefix)
        self._calls = calls
        self._hear = hear
        self._variables = environment.forwarded(os.environ, request)
        self._selector = selectors.DefaultSelector()
        self._open = contextlib.ExitStack()  # until the end of the job
        self._ranks = {}  # by number
        self._alive = {}  # connections that arrived before their rank reported
        self._begun = False  # whether the ranks have been told to run
        self._passed_on = set()  # the statuses of ranks that die of signals which they decide on
        self._signal = None  # the first signal that this process received
        self._signal_at = 0.0
        self._second = None  # the signal by which the user asked for the end again
        self._told_to_end = False
        self._kill_launcher_at = None
        self._settled_at = None
        self._shown = set()  # keys of the ranks' errors: see `error_text.key_of`
        self._input = None  # for rank 0
        self._looked_up = {}  # the addresses to which a rank resolves the name of its host

    def run(self):
        """Runs the job.

        Returns:
            `Outcome`. Its status is 0, that of the first rank that failed, or 128 plus the number
            of the signal that this process received.
        """
        with self._open:
            self._open.callback(self._selector.close)
            if self._calls is not None:
                self._open.callback(self._calls.close)
                self._calls.watch(self._selector)
            self._watch_signals()
            reports = Reports(self._selector, self._request, self._placement)
            try:
                with contextlib.closing(reports):  # no rank connects after the start
                    self._launch(reports.settings())
                    self._open.callback(self._kill_launcher)
                    self._start(reports)
                self._watch()
            except JobFailed as failure:
                self._end(signal.SIGKILL, 0)
                self._wait_for_launcher()
                self._screen.finish()
                self._screen.tell(str(failure))
                if self._signal:
                    return verdict.Outcome(128 + self._signal, verdict.Cause.SIGNAL)
                return verdict.Outcome(1, verdict.Cause.NOT_STARTED)
        return self._judge()

    def _watch_signals(self):
        self._selector.register(*processes.wake_by_signals(self._open))
        for number in (*processes.SIGNALS, signal.SIGCHLD):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # nohup
            handler = self._note if number in processes.SIGNALS else lambda *_: None
            self._open.callback(signal.signal, number, signal.signal(number, handler))

    def _note(self, number, frame):
        if self._begun and number not in processes.ENDING_SIGNALS:
            self._passed_on.add(128 + number)
            self._send(number, None)  # the ranks decide whether it ends them
            return
        is_another = time.monotonic() - self._signal_at > termination.ONE_REQUEST
        if self._signal is None:
            self._signal, self._signal_at = number, time.monotonic()
            if self._begun:  # before, `_start` checks `self._signal`
                self._end(number, self._request.grace)
        elif self._begun and (is_another or number == signal.SIGINT):
            self._second = self._second or number
            self._end(signal.SIGKILL, 0)

    def _launch(self, settings):
        """Starts the launcher in a new session, so that Ctrl-C reaches this process only."""
        variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PMI", "OMPI_COMM_WORLD", "MPI_LOCAL", "_EASYDDL_"))
        }
        variables |= environment.network(self._request)
        variables |= self._line.environment | {"EASYDDL_LAUNCH": settings}
        if self._placement.cpus is not None:
            os.sched_setaffinity(0, self._placement.cpus)  # the launcher and the ranks inherit it
        self._launcher = subprocess.Popen(
            self._line.arguments,
            env=variables,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=functools.partial(_prepare, os.getpid()),
        )

    def _start(self, reports):
        """Waits for all ranks, compares them with the placement, and tells them to run."""
        inspections = Inspections(self._line, reports.addresses)
        with contextlib.ExitStack() as stack:
            stack.callback(inspections.end)
            self._wait_for_ranks(reports, inspections)
        hellos = {number: rank.hello for number, rank in self._ranks.items()}
        problem = granted_hosts.problem(self._placement, hellos, version_of("easyddl"))
        if problem:
            raise JobFailed(f"The job was not started. {problem}")
        self._compare_names(hellos)
        self._order()

    def _compare_names(self, hellos):
        """Warns of host names that this host and the ranks' hosts resolve differently."""
        names = granted_hosts.aliases(self._placement, hellos)
        for number, name in names.items():
            self._ranks[number].link.send(look_up=name)
        end = time.monotonic() + _NAMES
        while names.keys() - self._looked_up.keys() and time.monotonic() < end:
            self._select(0.05)
        for number, there in sorted(self._looked_up.items()):
            found = granted_hosts.contradiction(names[number], hellos[number], there)
            if found:
                self._screen.tell(f"warning: {found}")
        self._fail_if_ended()

    def _wait_for_ranks(self, reports, inspections):
        """Waits until all ranks have reported, and inspects the hosts of those that are late."""
        timeout = self._request.start_timeout
        begun = time.monotonic()
        while self._ranks_are_missing():
            self._wait_for_reports(reports, begun + timeout - time.monotonic())
            if self._launcher.poll() is not None:
                self._fail_without_launcher(reports, inspections)
            if time.monotonic() > begun + min(_LATE, timeout / 4):
                inspections.begin(self._absent())
                self._fail_if_no_rank_can_start(inspections)
            if time.monotonic() > begun + timeout:
                told = missing.text(self._absent())
                raise JobFailed(
                    f"The job did not start within {timeout:g} s (`--start-timeout`): {told}"
                    f"{self._found(inspections)}"
                )

    def _ranks_are_missing(self):
        some = len(self._ranks) < self._placement.size
        return some or any(rank.alive is None for rank in self._ranks.values())

    def _absent(self):
        """Returns the ranks that have not reported, by the name of their host."""
        return missing.hosts(self._placement, self._ranks)

    def _wait_for_reports(self, reports, wait):
        self._select(wait)
        for arrival in reports.take():
            self._admit(arrival)
        self._fail_if_ended()

    def _fail_if_ended(self):
        """Raises an error if the job is to end, or cannot start, because of a rank."""
        if self._signal is not None:
            raise JobFailed("The job was ended before it had started.")
        for rank in self._ranks.values():
            if rank.problem:
                raise JobFailed(f"The job did not start: {rank.place} failed: {rank.problem}.")
            if rank.lost is not None:
                told = verdict.text_of(rank, self._ranks.values())
                raise JobFailed(f"The job did not start: {told}")

    def _fail_if_no_rank_can_start(self, inspections):
        told = inspections.problems_of(self._absent())
        if told:
            raise JobFailed(f"The job did not start. {told}")

    def _found(self, inspections):
        """Returns the findings on the hosts that have not reported, as the end of a message."""
        reported = {
            self._placement.host_of(number): rank.hello["kernel"]
            for number, rank in self._ranks.items()
        }
        found = inspections.findings(self._absent(), reported)
        return f" {found}" if found else ""

    def _fail_without_launcher(self, reports, inspections):
        """Raises the error of a launcher that ended too early, after hosts were inspected."""
        status = self._launcher.returncode
        if status > 0 or -status in _CRASHES:  # not if it succeeded, or another process killed it
            inspections.begin(self._absent())
        end = time.monotonic() + _INSPECTION
        while not inspections.have_ended() and time.monotonic() < end:
            self._wait_for_reports(reports, 0.1)
        self._fail_if_no_rank_can_start(inspections)
        raise JobFailed(
            f"The job did not start: {self._line.launcher} {processes.end_of(status)} before "
            "all ranks had reported. What it printed, if anything, is above."
            f"{self._found(inspections)}"
        )

    def _admit(self, arrival):
        """Takes over a connection of a rank."""
        if arrival.kind == protocol.ALIVE:
            keep_alive(arrival.socket, self._request.host_timeout)
            self._alive[arrival.number] = Connection(arrival.socket)
            self._open.callback(self._alive[arrival.number].close)
        else:
            self._open.callback(arrival.connection.close)
            hello, number = arrival.header, arrival.header["rank"]
            if hello["size"] != self._placement.size or number in self._ranks:
                raise JobFailed(
                    f"The launcher {self._line.arguments[0]} started a rank that says it is rank "
                    f"{number} of {hello['size']}, instead of one of {self._placement.size}. It "
                    "may be of another MPI than the library that easyddl uses."
                )
            rank = self._ranks[number] = verdict.Rank(number, hello, arrival.connection)
            rank.link.watch(self._selector, functools.partial(self._receive, rank))
        for number in self._alive.keys() & self._ranks.keys():
            rank = self._ranks[number]
            rank.alive = self._alive.pop(number)
            rank.alive.watch(self._selector, functools.partial(self._hear_alive, rank))

    def _order(self):
        """Tells each rank what to run, and on which cores."""
        cpus = self._shares()
        has_input = standard_input.is_open()
        for rank in self._ranks.values():
            rank.link.send(
                run={
                    "rank": rank.number,
                    "program": self._request.program,
                    "directory": self._request.directory,
                    "environment": self._variables,
                    "cpus": cpus.get(rank.number),
                    "input": has_input and rank.number == 0,
                    "output": self._request.output,
                    "mark": self._calls and self._calls.mark,
                    "is_restarted": self._hear is not None,
                }
            )
        self._begun = True
        if self._signal is not None:  # it came before, and nothing was told to the ranks
            self._end(self._signal, self._request.grace)
        if self._hear is not None:
            self._hear("start")
        if has_input:
            self._input = standard_input.StandardInput(self._selector, self._ranks[0].link)
            self._open.callback(self._input.close)

    def _shares(self):
        """Returns a dictionary from each rank that is bound to its CPUs."""
        shares = {}
        for kernel in {rank.hello["kernel"] for rank in self._ranks.values()}:
            there = [r for r in self._ranks.values() if r.hello["kernel"] == kernel]
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
            if self._input is not None:
                self._input.watch()
            if self._settled_at is not None and time.monotonic() > self._settled_at:
                self._settled_at = None
                self._end(signal.SIGTERM, _AFTER_FAILURE)
            if self._kill_launcher_at is not None and time.monotonic() > self._kill_launcher_at:
                self._kill_launcher()
            if self._launcher.poll() is not None:
                self._expect_end()
        self._wait_for_launcher()

    def _expect_end(self):
        """Sets a deadline for the ranks after the launcher's end, and then gives them up as lost.

        Ranks end with the launcher, unless their host cannot be reached.
        """
        if self._kill_launcher_at is None:
            self._kill_launcher_at = time.monotonic() + self._request.host_timeout + _LAUNCHER
        elif time.monotonic() > self._kill_launcher_at:
            for rank in self._ranks.values():
                if not rank.is_over:
                    self._lose(rank, "it did not report its end")

    def _select(self, wait):
        for key, _ in self._selector.select(max(0.0, min(wait, 1.0))):
            key.data()

    def _receive(self, rank):
        if self._calls is not None and not self._calls.has_room():
            return
        try:
            for message, buffers in rank.link.receive():
                self._take(rank, message, buffers)
        except ConnectionLost as error:
            rank.link.unwatch()
            self._lose(rank, str(error))

    def _take(self, rank, message, buffers):
        if "output" in message:
            ends = itertools.pairwise(itertools.accumulate(message["sizes"], initial=0))
            lines = [buffers[0][begin:end] for begin, end in ends]
            self._screen.write(rank.number, message["output"], lines)
        elif "call_output" in message or "mark" in message:
            self._calls.send(rank.number, message, buffers)
        elif "error" in message:
            self._take_error(rank, message["error"])
        elif "event" in message:
            self._hear(message["event"])
        elif "looked_up" in message:
            self._looked_up[rank.number] = message["looked_up"]
        elif "taken" in message:
            self._input.taken(message["taken"])
        elif "end" in message:
            vars(rank).update(message["end"], lost=None, ended_at=time.monotonic())
            rank.link.send(noted=True)
            if rank.after_kill:
                self._settle()  # the rank that called MPI_Abort may not have ended yet
            elif rank.failed:
                self._end(signal.SIGTERM, _AFTER_FAILURE)

    def _take_error(self, rank, error):
        """Shows the error that ends a rank, unless another rank's equal error was shown.

        If the ranks' output goes to files, the verdict shows the error.
        """
        if rank.error is None:
            rank.error, rank.failed_at = error, time.monotonic()
        key = error_text.key_of(error)
        if key in self._shown or self._request.output:
            return
        self._shown.add(key)
        # The verdict on the first error repeats the content of easyddl's own line.
        lines = error["text"].splitlines(keepends=True)
        if not lines or not self._request.prefix:
            lines.append(error["line"])
        coded = [line.encode("utf-8", "surrogateescape") for line in lines]
        self._screen.write(rank.number, "err", coded)

    def _hear_alive(self, rank):
        try:
            rank.alive.receive()
        except ConnectionLost as error:
            rank.alive.unwatch()
            # A closed connection is no evidence. The report of the rank's end may still follow much
            # output on the other connection, which closes after the report. A host that has booted
            # again resets the connection.
            if str(error) != ENDED:
                self._lose(rank, str(error))

    def _lose(self, rank, reason):
        """Records that a rank's connection ended before its program did."""
        if rank.is_over:
            return
        rank.lost, rank.ended_at = reason, time.monotonic()
        self._settle()

    def _settle(self):
        """Ends all ranks after a delay, in which ranks that fail together are noticed."""
        if self._settled_at is None:
            self._settled_at = time.monotonic() + _SETTLE

    def _end(self, number, grace):
        """Sends all ranks a signal, and kills those that still run after `grace` seconds."""
        if number != signal.SIGKILL and self._told_to_end:
            return
        self._told_to_end = True
        self._send(number, grace)
        at = time.monotonic() + grace + _LAUNCHER
        self._kill_launcher_at = min(at, self._kill_launcher_at or at)

    def _send(self, number, grace):
        """Sends all ranks a signal. With a `grace` of `None`, it need not end them."""
        for rank in self._ranks.values():
            if not rank.is_over:
                rank.link.send(signal=number, grace=grace)

    def _wait_for_launcher(self):
        if not self._begun:
            self._kill_launcher()  # a launcher that ends by itself leaves a hanging ssh behind
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._launcher.wait(_LAUNCHER)

    def _kill_launcher(self):
        if self._launcher.poll() is None:
            process_tree.kill_with_descendants(self._launcher.pid)
        self._launcher.wait()

    def _judge(self):
        """Prints how the job ended, and returns its `Outcome`."""
        self._screen.finish()
        ranks = list(self._ranks.values())
        if self._signal is not None:
            name = processes.name_of(self._signal)
            second = processes.name_of(self._second) if self._second else None
            killed = verdict.killed_text(ranks, self._request.grace, second)
            self._screen.tell(f"{name} has ended the job on all hosts.{killed}")
            return verdict.Outcome(128 + self._signal, verdict.Cause.SIGNAL)
        first = verdict.first_failure(ranks)
        if first is not None:
            self._screen.tell(verdict.text_of(first, ranks, self._request.output))
            outcome = verdict.outcome_of(first, ranks)
            if any(rank.status in self._passed_on for rank in ranks):
                return verdict.Outcome(outcome.status, verdict.Cause.SIGNAL)
            return outcome
        statuses = [rank.status for rank in ranks if rank.status]
        launcher = self._launcher.returncode
        if statuses or launcher:
            end = "has not ended" if launcher is None else processes.end_of(launcher)
            self._screen.tell(
                f"no rank reported a failure of its own, but {self._line.launcher} {end}. What it "
                "printed, if anything, is above."
            )
            # MPICH's may have killed ranks because others, whose programs had ended, left MPI.
            status = statuses[0] if statuses else 128 - launcher if launcher < 0 else 0
            cause = verdict.Cause.LOST if statuses else verdict.Cause.DONE
            return verdict.Outcome(status, cause)
        return verdict.Outcome(0, verdict.Cause.DONE)


def _prepare(parent):
    """Runs in the launcher's process before the launcher."""
    # Otherwise a launcher that waits for an unreachable host would outlive `easyddl run`.
    process_tree.die_with_parent(parent)
    # A scheduler may signal all processes. Launchers handle few signals, and MPI needs them to end.
    for number in set(processes.SIGNALS) - {signal.SIGINT, signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
