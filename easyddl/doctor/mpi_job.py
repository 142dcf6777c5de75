"""A small MPI job: starts MPI and does an allreduce over all ranks, as training does."""

import sys

from easyddl.runtime import mpi_library

_BYTES = 1 << 20


def main():
    """Runs one rank.

    Returns:
        The exit status.
    """
    mpi = mpi_library.load_mpi()
    mpi.Init()
    comm = mpi.COMM_WORLD
    ours = bytearray(_BYTES)
    ours[comm.rank % _BYTES] = 1
    theirs = bytearray(_BYTES)
    comm.Allreduce([ours, mpi.BYTE], [theirs, mpi.BYTE], mpi.BOR)
    right = sum(theirs) == comm.size
    mpi.Finalize()
    if not right:
        print("the sum over all ranks is wrong", file=sys.stderr)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
