"""The file that this rank's part of a timeline goes to."""

import contextlib
import json
import os
import pathlib
import stat

VARIABLE = "EASYDDL_TIMELINE"
FORMAT = 1


def is_wanted():
    """Whether the user asks for a timeline."""
    return bool(_folder())


def file_name(rank):
    """The name of a rank's file."""
    return f"rank-{rank}.jsonl"


class File:
    """One rank's file, open for writing.

    Attributes:
        descriptor: Integer.
        rank: Integer.
        job: String, the same for all files of one run, and for no other's.
    """

    def __init__(self, folder, rank):
        path = pathlib.Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self.descriptor = _create(path / file_name(rank))
        self.rank = rank
        self.job = None

    def begin(self, size, host):
        """Writes the first line."""
        first = {"easyddl_timeline": FORMAT, "rank": self.rank, "size": size, "host": host,
                 "job": self.job}  # fmt: skip
        os.write(self.descriptor, json.dumps(first).encode() + b"\n")


def _create(path):
    """A new file in the place of an earlier job's. Only a regular file is replaced.

    In a directory that others can write to, a link in its place would lead to any file of ours.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            raise ValueError(f"{path} is a link or a special file, which is not replaced")
        path.unlink()
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)


def open_file(comm):
    """Opens this rank's file. All ranks must call it together.

    Args:
        comm: The communicator of all ranks, of mpi4py.

    Returns:
        `File`, or `None` if no timeline is wanted.

    Raises:
        ValueError: On all ranks, if a rank cannot write where `EASYDDL_TIMELINE` says, or if
            some have the variable and others do not.
    """
    folder, file, problem = _folder(), None, None
    if folder:
        try:
            file = File(folder, comm.rank)
        except (OSError, ValueError) as error:
            problem = str(error)
    told = comm.allgather((folder, problem, os.urandom(6).hex()))
    error = _error(told)
    if error is not None:
        if file is not None:
            os.close(file.descriptor)
        raise ValueError(error)
    if file is not None:
        file.job = told[0][-1]
    return file


def _folder():
    return os.environ.get(VARIABLE, "").strip()


def _error(told):
    """What is wrong with what the ranks told of themselves, or `None`."""
    having = [rank for rank, (folder, _, _) in enumerate(told) if folder]
    lacking = [rank for rank in range(len(told)) if rank not in having]
    if having and lacking:
        return (
            f"{VARIABLE} is set on rank {having[0]} but not on rank {lacking[0]}. Set it on all "
            f"ranks, or on none: Open MPI hands it on with `mpirun -x {VARIABLE}`."
        )
    for rank, (folder, problem, _) in enumerate(told):
        if problem is not None:
            return (
                f"{VARIABLE} must name a directory that every rank can write to. Rank {rank} "
                f"cannot: {problem}. Received: {folder!r}"
            )
    return None
