"""A job as a series of starts: if ranks or hosts are lost, the next start goes on without them.

Each start is a `Job` of its own, of the same program. It resumes from the last backup of
`BackupAndRestore`. Nothing of easyddl runs between two starts but this process.
"""

import collections
import os
import time

from easyddl.hosts import host_list
from easyddl.hosts.topology_tree import counted
from easyddl.launch.output.screen import Screen
from easyddl.launch.supervise.inspection import Inspections
from easyddl.launch.supervise.verdict import Cause
from easyddl.transport import connection

_ANSWER = 10.0  # seconds in which a host must answer
_ASK = 5.0  # seconds from one question to the next
_MARGIN = 2.0  # seconds for a supervisor to kill its rank
_MOST_KILLS = 3  # of a host

# The parts of a start, in their order. The launcher notes the first, and rank 0 reports the others
# at the end of each: when `fit` begins, when it has resumed, and after its first step.
_PARTS = ("start", "import", "restore", "first step")
_BACKUP = "backup"


class Restarts:
    """The starts of a job.

    Args:
        request: `Request`.
        placement: `Placement` of the first start.
        line: `CommandLine` of the first start.
        most: Integer. The number of restarts.
        min_np: Integer. The number of slots that a start needs.
        wait: Float. Seconds to wait for hosts if there are fewer slots.
        on_error: Boolean. Whether an error of the script is followed by a restart.
    """

    def __init__(self, request, placement, line, most, min_np, wait, on_error):
        self._most, self._min_np, self._wait, self._on_error = most, min_np, wait, on_error
        self._request = request
        self._placement = placement
        self._line = line
        self._longest_silence = connection.longest_silence(request.host_timeout)
        self._tell = Screen(1, prefix=False).tell
        self._events = set()  # of the present start
        self._seconds = {}  # of the present restart, by part
        self._at = 0.0  # when its last part ended
        self._kills = collections.Counter()  # by the name of the host

    def run(self, start):
        """Runs the job.

        Args:
            start: Function of the number of a start, from 1 on, its `Placement`, and the function
                that its `Job` calls with events. Runs the start, and returns its `Outcome`.

        Returns:
            The exit status: that of the last start; or EX_TEMPFAIL, by which schedulers queue a job
            again, if too few hosts are left.
        """
        number = 0
        while True:
            number, self._events = number + 1, set()
            outcome = start(number, self._placement, self._hear)
            if outcome.cause in (Cause.DONE, Cause.SIGNAL):
                return outcome.status
            reason = self._reason_to_end(number, outcome)
            if reason:
                self._tell(f"not restarted: {reason}")
                return outcome.status
            self._count(outcome)
            if not self._place(number + 1):
                return os.EX_TEMPFAIL

    def _hear(self, event):
        """Notes what a start has done. Prints what a restart was made of once it trains."""
        self._events.add(event)
        if event in _PARTS and event not in self._seconds and self._seconds:
            self._end_part(event)
            if event == _PARTS[-1]:
                parts = ", ".join(f"{name} {each:.1f}" for name, each in self._seconds.items())
                self._tell(f"the restart took {sum(self._seconds.values()):.1f} s: {parts}")

    def _end_part(self, name):
        now = time.monotonic()
        self._seconds[name], self._at = now - self._at, now

    def _reason_to_end(self, number, outcome):
        if outcome.cause is Cause.SCRIPT and not self._on_error:
            return "the script has failed by itself. `--restart-on-error` restarts it anyway."
        if "start" in self._events and _BACKUP not in self._events:
            return "this start has saved no backup by `easyddl.BackupAndRestore`."
        if number > self._most:
            return f"this was restart {self._most} of `--restarts {self._most}`."
        # In the first start, this may be a wrong option. Later on, a host may have been lost.
        if outcome.cause is Cause.NOT_STARTED and number == 1:
            return "the first start has not begun."
        return None

    def _count(self, outcome):
        """Begins the account of a restart, and counts the host of a killed rank."""
        rank = outcome.rank
        is_silent = rank is not None and rank.lost == connection.SILENT
        self._seconds = {"notice": self._longest_silence if is_silent else 0.0}
        self._at = time.monotonic() if rank is None else rank.ended_at
        self._end_part("end")
        if outcome.cause is not Cause.LOST or rank is None:
            return
        host = self._placement.host_of(rank.number)
        if rank.status is not None:
            self._kills[host] += 1
            if self._kills[host] == _MOST_KILLS:
                self._tell(f"host {host} is left out: ranks were killed there {_MOST_KILLS} times.")
        elif (
            self._line.on_host is None
            and rank.lost != connection.ENDED  # as a killed supervisor's
            and not host_list.is_this_host(host)
        ):
            self._kills[host] = _MOST_KILLS
            self._tell(f"host {host} is left out: it was lost, and cannot be asked for an answer.")

    def _place(self, number):
        """Chooses the hosts of the next start, for which it may wait. Returns whether it has."""
        ended = time.monotonic()
        offered = [host.name for host in self._placement.offered]
        fit = [name for name in offered if self._kills[name] < _MOST_KILLS]
        cut_off, silent = False, []
        while True:
            before, silent = silent, self._silent_among(fit)
            if silent and silent != before:
                self._tell(f"{counted(len(silent), 'host')} not answering: {', '.join(silent)}")
            cut_off = cut_off or bool(silent)
            placed = self._placement.on(set(fit) - set(silent), self._request.np)
            if placed.size >= self._min_np:
                break
            if time.monotonic() > ended + self._wait:
                self._tell(
                    f"not restarted: {counted(placed.size, 'slot')} left, fewer than `--min-np "
                    f"{self._min_np}`. Status {os.EX_TEMPFAIL}."
                )
                return False
            time.sleep(_ASK)
        if cut_off:
            # By then the supervisors of hosts that are cut off have killed their ranks.
            time.sleep(max(0.0, ended + self._longest_silence + _MARGIN - time.monotonic()))
        self._placement = placed
        self._end_part("hosts")
        self._tell(f"restart {number - 1} of {self._most}")
        return True

    def _silent_among(self, names):
        """Returns those other hosts that do not answer a login, of all that can be asked."""
        inspections = Inspections(self._line, [], most=len(names))
        try:
            inspections.begin([name for name in names if not host_list.is_this_host(name)])
            end = time.monotonic() + _ANSWER
            while not inspections.have_ended() and time.monotonic() < end:
                time.sleep(0.05)
            return inspections.silent()
        finally:
            inspections.end()
