"""The trace file of this rank. The engine writes it if the user sets EASYDDL_TIMELINE."""

import json
import os
import pathlib

from easyddl.profiling import output_file

VARIABLE = "EASYDDL_TIMELINE"
FORMAT = 1


def is_wanted():
    """Returns whether the user has set EASYDDL_TIMELINE."""
    return bool(_folder())


def file_name(rank):
    """Returns the name of a rank's file."""
    return f"rank-{rank}.jsonl"


class File:
    """The trace file of one rank, open for writing.

    Args:
        folder: String or path. The directory, which is created if it does not exist.
        rank: Integer. The number of the rank.

    Attributes:
        descriptor: Integer. The file descriptor.
        rank: Integer. The number of the rank.
        job: String, equal in all files of one run and different between runs.
    """

    def __init__(self, folder, rank):
        path = pathlib.Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self.descriptor = output_file.create(path / file_name(rank))
        self.rank = rank
        self.job = None

    def begin(self, size, host):
        """Writes the first line.

        Args:
            size: Integer. The number of ranks.
            host: String. The name of the rank's host.
        """
        first = {"easyddl_timeline": FORMAT, "rank": self.rank, "size": size, "host": host,
                 "job": self.job}  # fmt: skip
        os.write(self.descriptor, json.dumps(first).encode() + b"\n")


def open_file(comm):
    """Opens the trace file of this rank. All ranks must call this function together.

    Args:
        comm: The mpi4py communicator of all ranks.

    Returns:
        `File`, or `None` if `EASYDDL_TIMELINE` is not set.

    Raises:
        ValueError: On all ranks, if any rank cannot write to the directory that `EASYDDL_TIMELINE`
            names, or if only some ranks have the variable.
    """
    folder, file, problem = _folder(), None, None
    if folder:
        try:
            file = File(folder, comm.rank)
        except OSError as error:
            problem = str(error)
    gathered = comm.allgather((folder, problem, os.urandom(6).hex()))
    error = _error(gathered)
    if error is not None:
        if file is not None:
            os.close(file.descriptor)
        raise ValueError(error)
    if file is not None:
        file.job = gathered[0][-1]
    return file


def _folder():
    return os.environ.get(VARIABLE, "").strip()


def _error(gathered):
    """Returns the error message for all ranks, or `None`.

    Args:
        gathered: List of tuples, by rank: its directory, its error or `None`, and a random string.
    """
    having = [rank for rank, (folder, _, _) in enumerate(gathered) if folder]
    lacking = [rank for rank in range(len(gathered)) if rank not in having]
    if having and lacking:
        return (
            f"{VARIABLE} is set on rank {having[0]} but not on rank {lacking[0]}. Set it on all "
            f"ranks, or on none. With Open MPI, `mpirun -x {VARIABLE}` sets it on all ranks."
        )
    for rank, (folder, problem, _) in enumerate(gathered):
        if problem is not None:
            return (
                f"{VARIABLE} must name a directory that every rank can write to. Rank {rank} "
                f"cannot: {problem}. Received: {folder!r}"
            )
    return None
