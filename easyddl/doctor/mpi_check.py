"""Loads MPI and the engine, and prints MPI's name. The agent runs it in a process of its own."""

from easyddl.runtime import mpi_library

if __name__ == "__main__":
    mpi = mpi_library.load_mpi()
    mpi_library.load_core(mpi)
    print(mpi.Get_library_version())
