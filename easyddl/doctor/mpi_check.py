"""Loads MPI and the engine, and prints MPI's version. The agent runs it in a separate process."""

from easyddl.runtime import mpi_library

if __name__ == "__main__":
    mpi = mpi_library.load_mpi()
    mpi_library.load_core(mpi)
    print(mpi.Get_library_version())
