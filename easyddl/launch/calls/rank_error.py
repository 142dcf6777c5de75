"""The error of a function that failed on a rank."""

from __future__ import annotations


class RankError(RuntimeError):
    """A function that `easyddl.run` or `Ranks.run` called has failed on a rank, or the rank ended.

    The exception of the rank is the `__cause__` of this error if it can be sent to the caller. If
    several ranks failed, the message lists all of them, and the attributes describe the first.

    Attributes:
        rank: Integer. The rank that failed.
        host: String. The name of its host.
        remote_traceback: String. The traceback as the rank would have printed it; empty if the
            rank ended without an exception.
        failed: Tuple of integers. All ranks that failed.
    """

    def __init__(
        self,
        message: str,
        rank: int = 0,
        host: str = "",
        remote_traceback: str = "",
        failed: tuple[int, ...] = (),
    ) -> None:
        super().__init__(message, rank, host, remote_traceback, failed)
        self.rank = rank
        self.host = host
        self.remote_traceback = remote_traceback
        self.failed = failed or (rank,)

    def __str__(self) -> str:
        return str(self.args[0])
