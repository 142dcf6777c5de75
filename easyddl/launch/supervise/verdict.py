"""How a job ended: the rank that failed first, the cause, and the message about it."""

import dataclasses
import enum
import os
import re
import signal

from easyddl.launch.output import error_text
from easyddl.runtime import console, mpi_files
from easyddl.transport import connection

# What easyddl prints when it ends all ranks after a signal, with what became of the backup.
_STOPPED = re.compile(r"easyddl: (received SIG\w+ on rank [^.]*\. [^.]*\.)")


class Cause(enum.Enum):
    """Why a job ended."""

    DONE = enum.auto()
    LOST = enum.auto()  # a rank was killed, also for lack of memory; or its host was lost
    SCRIPT = enum.auto()  # its error, or its own exit status
    NOT_STARTED = enum.auto()
    SIGNAL = enum.auto()  # that `easyddl run` received, or after which all ranks ended together


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        status: Integer. The exit status.
        cause: `Cause`.
        rank: `Rank`. The one that failed first, or was lost; `None` if none did.
    """

    status: int
    cause: Cause
    rank: object = None


@dataclasses.dataclass
class Rank:
    """The state of a rank that has reported.

    Attributes:
        number: Integer.
        hello: Dictionary. The facts that it reported.
        link: `Connection` for messages.
        alive: `Connection` without messages, or `None` before it has arrived.
        status: Integer. The exit status of its program; `None` while it runs.
        ordered: Boolean. Whether it was told to end.
        after_kill: Boolean. Whether its program ended after the launcher had killed the job.
        lines: List of strings. The last lines of its output.
        problem: String. A failure outside of the program, or `None`.
        is_agent_lost: Boolean. Whether the failure is the end of the launcher's process there.
        lost: String. Why its connection ended before its program, or `None`.
        ended_at: Float. When it ended or was lost, by `time.monotonic`.
        error: Dictionary of `error_text.ErrorText`. The printed error that ended the program, or
            `None`.
        failed_at: Float. When that error arrived.
    """

    number: int
    hello: dict
    link: object
    alive: object = None
    status: int | None = None
    ordered: bool = False
    after_kill: bool = False
    lines: list = dataclasses.field(default_factory=list)
    problem: str | None = None
    is_agent_lost: bool = False
    lost: str | None = None
    ended_at: float = 0.0
    error: dict | None = None
    failed_at: float | None = None

    @property
    def is_over(self):
        """Whether it has ended or is lost."""
        return self.status is not None or self.lost is not None

    @property
    def failed(self):
        """Whether it ended badly without being told to end."""
        if self.status is not None:
            return self.status != 0 and not self.ordered
        return self.lost is not None

    @property
    def place(self):
        """Its number and host, for messages."""
        return f"rank {self.number} on host {self.hello['host']}"


def first_failure(ranks):
    """Returns the rank that failed first; `None` if none did.

    Args:
        ranks: Iterable of `Rank`.
    """
    failed = [rank for rank in ranks if rank.failed]
    if all(rank.status == 0 for rank in ranks):  # all may have called os._exit(0)
        return None
    # A rank that calls MPI_Abort makes the launcher kill all ranks. Other ranks notice this and
    # fail too, possibly before the process of that rank has ended.
    for causes in (
        # Its process was told to end, by which a script may take it for preempted, as others do.
        [rank for rank in failed if rank.problem and not rank.is_agent_lost],
        [rank for rank in failed if not rank.after_kill],
        [rank for rank in ranks if (rank.status or rank.after_kill) and _ended_the_job(rank)],
        failed,
    ):
        if causes:
            first = min(causes, key=_time_of_failure)
            return _reported_dead(first, ranks) or first
    return None


# What easyddl prints on a rank that sees another one of its host die.
_DEATH = re.compile(r"easyddl: rank (\d+) on host \S+ \(process \d+\) died: ")

# What it prints on a rank that cannot start because other ranks of its host have ended.
_LEFT_ALONE = re.compile(r"easyddl: rank \d+ on host .* MPI cannot start: of the ")


def _reported_dead(rank, ranks):
    """Returns the rank whose death or early end a rank has reported; `None` if there is none.

    On a busy host, the end of the dead rank may be noticed after the rank that reports it has
    ended the job.
    """
    found = [_DEATH.search(line) for line in rank.lines]
    dead = {int(match[1]) for match in found if match}
    if any(_LEFT_ALONE.search(line) for line in rank.lines):
        dead |= {other.number for other in ranks if other.status == 0}
    return next((other for other in ranks if other.is_over and other.number in dead), None)


# What easyddl prints on a rank whose peer is gone or silent, and what a failed call of MPI says.
_PEER = re.compile(
    r"does not answer: it is stopped, or cannot be reached|MPI_\w+ failed: "
    r"|MPI\.Exception: Other MPI error"  # in a call of mpi4py
    r"|: Fatal error in "
)


def outcome_of(rank, ranks):
    """Returns the `Outcome` of a job in which a rank failed first.

    Args:
        rank: `Rank`.
        ranks: Iterable of all `Rank`.
    """
    error = list(rank.error.values()) if rank.error else []
    has_seen_death = _DEATH.search("\n".join([*rank.lines, *error]))
    # A line about a peer that was silent for long, and then went on, may stand before an own error.
    has_lost_peer = _PEER.search("\n".join(error or rank.lines))
    if not rank.problem and (has_seen_death or has_lost_peer):  # no error of the script
        gone = [other for other in ranks if other.failed and _is_gone(other)]
        return Outcome(status_of(rank), Cause.LOST, min(gone, key=_time_of_failure, default=None))
    if _stop(rank.status, ranks):
        return Outcome(status_of(rank), Cause.SIGNAL)
    cause = Cause.LOST if _is_gone(rank) else Cause.SCRIPT
    return Outcome(status_of(rank), cause, rank)


def _is_gone(rank):
    """Returns whether a rank was killed or lost, instead of ending by its script."""
    if rank.status is None:
        # srun kills the supervisors, too, when a rank has ended the job by its error.
        return rank.lost is not None and rank.error is None
    if rank.problem or (rank.ordered and _ended_the_job(rank)):  # its own error came before
        return rank.is_agent_lost
    return 128 < status_of(rank) < 128 + signal.NSIG  # -1 is 255: an exit status of the script


def _with_same_error(rank, ranks):
    """Returns the other ranks that printed the same error as one rank."""
    if rank.error is None:
        return []
    key = error_text.key_of(rank.error)
    others = [other for other in ranks if other is not rank and other.error is not None]
    return [other for other in others if error_text.key_of(other.error) == key]


def _time_of_failure(rank):
    """Returns when a rank failed: when its error arrived, which may be long before its end."""
    return rank.ended_at if rank.failed_at is None else rank.failed_at


def _ended_the_job(rank):
    """Returns whether a rank's last lines, of easyddl or MPI, say that it ended the job."""
    signs = (
        f"easyddl: rank {rank.number} on host ",
        "application called MPI_Abort",
        "MPI_ABORT was",
    )
    # A rank also ends the job when it sees another one die.
    return any(_DEATH.search(line) or any(sign in line for sign in signs) for line in rank.lines)


# MPICH and Open MPI print the status that a rank passed to MPI_Abort. MPICH may print further
# errors after it, until the rank is killed.
_ABORTED = re.compile(r"application called MPI_Abort\(.*, (\d+)\)|with errorcode (\d+)")


# MPICH exits with the lowest byte of this error code. It may look like the status after a signal.
_FATAL = re.compile(r"Abort\((\d+)\).*: Fatal error in ")


def status_of(rank):
    """Returns the exit status of a job in which a rank failed first."""
    if rank.after_kill:
        for line in rank.lines:
            found = _ABORTED.search(line)
            if found and 0 < int(found[1] or found[2]) < 256:
                return int(found[1] or found[2])
    codes = _FATAL.findall("\n".join(rank.lines))
    if any(int(code) % 256 == rank.status for code in codes):
        return 1
    return rank.status or 1


def text_of(rank, ranks, output=None):
    """Returns the message about the rank that failed first.

    Args:
        rank: `Rank`.
        ranks: Iterable of all `Rank`.
        output: String. The directory of the ranks' output files; `None` without files.
    """
    if rank.status is None and rank.error is None:
        return _loss(rank, ranks)
    stopped = _stop(rank.status, ranks)
    if stopped:
        return f"the ranks have ended with exit status {rank.status}: {stopped}"
    # Of ranks with equal errors, the screen shows the first rank's error. The launcher may have
    # killed that rank before its end, so the exit status may come from another rank.
    status = _end(rank, ranks)
    rank = min([rank, *_with_same_error(rank, ranks)], key=_time_of_failure)
    text = console.sentence(f"{rank.place} {status}")
    if output and not rank.problem:
        text += f" Its output is in {os.path.join(output, f'{rank.number}.log')} on that host."
    others = _others_with_the_same_error(rank, ranks)
    if rank.error and rank.error["text"] and not rank.problem:
        text += f" The error{f', also of {others}' if others else ''}:"
        # The ranks' output, which the screen has shown, contains the traceback.
        lines = rank.error["text"].splitlines() if output else error_text.message_of(rank.error)
    else:
        text += f" {others.capitalize()} failed in the same way." if others else ""
        lines = error_text.without_abort(rank.lines) if rank.error else rank.lines
        text += " Its last lines:" if lines else ""
    return "\n".join([text, *(f"    {line}".rstrip() for line in lines)])


_MOST_NAMED = 8  # ranks in one message


def _others_with_the_same_error(rank, ranks):
    """Returns a text on the other ranks that failed in the same way; empty without any."""
    numbers = sorted(other.number for other in _with_same_error(rank, ranks))
    if len(numbers) > _MOST_NAMED:
        return f"{len(numbers)} other ranks"
    return console.ranks(numbers) if numbers else ""


def killed_text(ranks, grace, second=None):
    """Returns a sentence about the ranks that a signal did not end; empty if it ended all.

    Args:
        ranks: Iterable of `Rank`.
        grace: Float. The seconds that they had.
        second: String. The name of a second signal, which ended their time; `None` without one.
    """
    killed = sorted(rank.number for rank in ranks if rank.ordered and rank.status == 137)
    if not killed:
        return ""
    is_one = len(killed) == 1
    some = f"{console.ranks(killed).capitalize()} {'was' if is_one else 'were'}"
    # Their scripts may have ended, for example after saving.
    processes = "its process" if is_one else "their processes"
    why = f"a second {second} came" if second else f"`--grace` is {grace:g} s"
    return f" {some} killed before {processes} had ended: {why}."


def _stop(status, ranks):
    """Returns what easyddl printed if it ended all ranks after a signal; `None` otherwise."""
    found = (_STOPPED.search(line) for rank in ranks for line in rank.lines)
    return next((match[1] for match in found if match and (status or 0) > 128), None)


def _end(rank, ranks):
    status = status_of(rank)
    if rank.problem:
        return f"failed: {rank.problem}"
    if rank.status == 0:
        return "failed first: it ended with status 0 before the end of its job, as by os._exit(0)"
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        return f"failed first, with exit status {status}"
    hint = " (the kernel does this when memory runs out)" if name == "SIGKILL" else ""
    if name in ("SIGBUS", "SIGSEGV"):
        there = sum(other.hello["kernel"] == rank.hello["kernel"] for other in ranks)
        shortage = mpi_files.shortage(rank.hello["shared_memory"], there)
        hint = f" ({shortage}: {mpi_files.MORE_SHARED_MEMORY})" if shortage else ""
    return f"failed first: it was killed by {name}{hint}"


def _loss(rank, ranks):
    """Returns the message about a rank, or a whole host, that was lost."""
    ranks = sorted(ranks, key=lambda other: other.number)
    there = [other for other in ranks if other.hello["kernel"] == rank.hello["kernel"]]
    lost = [other for other in there if other.lost is not None and other.status is None]
    host = rank.hello["host"]
    if len(lost) == len(there):
        return (
            f"host {host} was lost, and with it {console.ranks([each.number for each in lost])}: "
            f"{'its connection ended' if rank.lost == connection.ENDED else rank.lost}."
        )
    return f"{rank.place} was lost: the process that supervised it has ended."
