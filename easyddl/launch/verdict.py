"""How a job ended: the first failure, and the words for it."""

import dataclasses
import os
import re
import signal

# What easyddl prints when it ends all ranks after a signal, with what became of the backup.
_STOPPED = re.compile(r"easyddl: (received SIG\w+ on rank [^.]*\. [^.]*\.)")


@dataclasses.dataclass
class Rank:
    """What is known of a rank that has reported.

    Attributes:
        number: Integer.
        hello: Dictionary. What it reported of itself.
        link: `Connection` for messages.
        alive: `Connection` without messages, or `None` before it has come.
        status: Integer. The exit status of its program; `None` while it runs.
        ordered: Boolean. Whether it was told to end.
        after_kill: Boolean. Whether its program ended after the launcher had killed the job.
        lines: List of strings. The last lines of its output.
        problem: String. What failed beside the program, or `None`.
        lost: String. Why its connection ended before its program, or `None`.
        ended_at: Float. When it ended or was lost, by `time.monotonic`.
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
    lost: str | None = None
    ended_at: float = 0.0

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
    """The rank that failed first; `None` if none did.

    Args:
        ranks: Iterable of `Rank`.
    """
    failed = [rank for rank in ranks if rank.failed]
    # A rank that calls MPI_Abort makes the launcher kill all ranks. Others notice this, and fail
    # too, maybe before that rank's process has ended.
    for causes in (
        [rank for rank in failed if not rank.after_kill],
        [rank for rank in ranks if (rank.status or rank.after_kill) and _ended_the_job(rank)],
        failed,
    ):
        if causes:
            return min(causes, key=lambda rank: rank.ended_at)
    return None


def _ended_the_job(rank):
    """Whether a rank's last lines tell that it ended the job: easyddl's, MPICH's or Open MPI's."""
    signs = (
        f"easyddl: rank {rank.number} on host ",
        "application called MPI_Abort",
        "MPI_ABORT was",
    )
    return any(sign in line for sign in signs for line in rank.lines)


# What MPICH and Open MPI print of the status that a rank passed to MPI_Abort. After it MPICH waits
# to be killed, and meets further errors until then.
_ABORTED = re.compile(r"application called MPI_Abort\(.*, (\d+)\)|with errorcode (\d+)")


def status_of(rank):
    """The exit status of a job that failed by a rank."""
    if rank.after_kill:
        for line in rank.lines:
            found = _ABORTED.search(line)
            if found and 0 < int(found[1] or found[2]) < 256:
                return int(found[1] or found[2])
    return rank.status or 1


def text_of(rank, ranks, output=None):
    """What to print of the rank that failed first.

    Args:
        rank: `Rank`.
        ranks: Iterable of all `Rank`.
        output: String. The directory of the ranks' output files; `None` without files.
    """
    if rank.status is None:
        return _loss(rank, ranks)
    stopped = _stop(rank.status, ranks)
    if stopped:
        return f"the ranks have ended with exit status {rank.status}: {stopped}"
    text = f"{rank.place} {_end(rank)}."
    if output and not rank.problem:
        text += f" Its output is in {os.path.join(output, f'{rank.number}.log')} on that host."
    if rank.lines:
        text += " Its last lines:"
    return "\n".join([text, *(f"    {line}" for line in rank.lines)])


def killed_text(ranks, grace):
    """A sentence about the ranks that did not end by themselves after a signal; empty if all did.

    Args:
        ranks: Iterable of `Rank`.
        grace: Float. The seconds that they had.
    """
    killed = sorted(rank.number for rank in ranks if rank.ordered and rank.status == 137)
    numbers = [str(number) for number in killed]
    if not numbers:
        return ""
    some = f"Ranks {', '.join(numbers)} were" if len(numbers) > 1 else f"Rank {numbers[0]} was"
    return f" {some} killed before the end of the script: `--grace` is {grace:g} s."


def _stop(status, ranks):
    """What easyddl printed if it ended all ranks after a signal; `None` otherwise."""
    found = (_STOPPED.search(line) for rank in ranks for line in rank.lines)
    return next((match[1] for match in found if match and status > 128), None)


def _end(rank):
    status = status_of(rank)
    if rank.problem:
        return f"failed: {rank.problem}"
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        return f"failed first, with exit status {status}"
    hint = " (the kernel does this when memory runs out)" if name == "SIGKILL" else ""
    return f"failed first: it was killed by {name}{hint}"


def _loss(rank, ranks):
    """The words for a rank, or a whole host, that vanished."""
    ranks = sorted(ranks, key=lambda other: other.number)
    there = [other for other in ranks if other.hello["machine"] == rank.hello["machine"]]
    lost = [other for other in there if other.lost is not None and other.status is None]
    host = rank.hello["host"]
    if len(lost) == len(there):
        numbers = ", ".join(str(other.number) for other in lost)
        return (
            f"host {host} was lost, and with it rank{'s' * (len(lost) > 1)} {numbers}: "
            f"{'its connection ended' if rank.lost == 'it ended' else rank.lost}."
        )
    return f"{rank.place} was lost: the process that supervised it has ended."
