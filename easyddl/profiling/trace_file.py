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


def open_file(comm, host):
    """Creates the trace file of this rank, and writes its first line. Collective.

    Args:
        comm: The mpi4py communicator of all ranks.
        host: String. The name of this rank's host.

    Returns:
        Integer. The descriptor of the file; `None` if `EASYDDL_TIMELINE` is not set.

    Raises:
        ValueError: On all ranks, if any rank cannot write to the directory that `EASYDDL_TIMELINE`
            names, or if only some ranks have the variable.
    """
    job = comm.bcast(os.urandom(6).hex())  # equal in all files of one run, and in no others
    first = {"easyddl_timeline": FORMAT, "rank": comm.rank, "size": comm.size, "host": host,
             "job": job}  # fmt: skip
    folder, file, problem = _folder(), None, None
    if folder:
        try:
            path = pathlib.Path(folder)
            path.mkdir(parents=True, exist_ok=True)
            file = output_file.create(path / file_name(comm.rank))
            os.write(file, json.dumps(first).encode() + b"\n")
        except OSError as error:
            problem = str(error)
    error = _error(comm.allgather((folder, problem)))
    if error is None:
        return file
    if file is not None:
        os.close(file)
    raise ValueError(error)


def _folder():
    return os.environ.get(VARIABLE, "").strip()


def _error(gathered):
    """Returns the error message for all ranks, or `None`.

    Args:
        gathered: List of pairs, by rank: its directory, and its error or `None`.
    """
    having = [rank for rank, (folder, _) in enumerate(gathered) if folder]
    lacking = [rank for rank in range(len(gathered)) if rank not in having]
    if having and lacking:
        return (
            f"{VARIABLE} is set on rank {having[0]} but not on rank {lacking[0]}. Set it on all "
            f"ranks, or on none. With Open MPI, `mpirun -x {VARIABLE}` sets it on all ranks."
        )
    for rank, (folder, problem) in enumerate(gathered):
        if problem is not None:
            return (
                f"{VARIABLE} must name a directory that every rank can write to. Rank {rank} "
                f"cannot: {problem}. Received: {folder!r}"
            )
    return None
