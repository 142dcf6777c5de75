"""The files of an MPI that a killed rank would leave behind."""

import mmap
import os

from easyddl.runtime import mpi_files


def test_memory_that_no_process_uses():
    """As that of ranks that have all crashed before anybody could look at what they have mapped."""
    paths = [f"/dev/shm/mpich_shm_{os.getpid()}_{number}" for number in range(2)]
    try:
        for path in paths:
            with open(path, "wb") as file:
                file.write(bytes(mmap.PAGESIZE))
        with open(paths[0], "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
            assert mpi_files.unused(60).intersection(paths) == {paths[1]}
        assert mpi_files.unused(60).issuperset(paths)
        assert not mpi_files.unused(-1)
    finally:
        mpi_files.remove(paths)
