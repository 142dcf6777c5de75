"""The binary interfaces (ABIs) of MPI, and the translation that this installation has for each.

Libraries of one ABI can replace each other without compiling anew:

- `mpich`: MPICH, Intel MPI, Cray MPICH, MVAPICH (https://www.mpich.org/abi/);
- `openmpi`: Open MPI 4 and 5;
- `abi`: the standard ABI of MPI 5.0 (libmpi_abi);
- `other`: an MPI that is none of these, for which easyddl was built from source.

The engine calls MPI through a small library for the ABI, `_mpi_<abi>.so` beside `_core`. A wheel
of a release has one for each ABI but `other`. A build from source has the one of the MPI that it
found.
"""

import pathlib

_PACKAGE = pathlib.Path(__file__).parents[1]

NAMES = {
    "mpich": "MPICH and what is compatible with it (Intel MPI, Cray MPICH, MVAPICH)",
    "openmpi": "Open MPI",
    "abi": "libraries with the standard ABI of MPI 5.0",
    "other": "the MPI that easyddl was built with",
}

# What the ABIs define as MPI_COMM_WORLD: MPICH's, and the standard's (MPI 5.0, section 20).
_WORLD_OF_MPICH = 0x44000000
_WORLD_OF_STANDARD = 0x101


def of_library(mpi):
    """The ABI of the library that mpi4py has loaded.

    Args:
        mpi: The module `mpi4py.MPI`.
    """
    world = world_handle(mpi)
    if world == _WORLD_OF_MPICH:
        return "mpich"
    if world == _WORLD_OF_STANDARD:
        return "abi"
    return "openmpi" if "Open MPI" in mpi.Get_library_version() else "other"


def world_handle(mpi):
    """The library's MPI_COMM_WORLD, as an unsigned integer.

    Args:
        mpi: The module `mpi4py.MPI`.
    """
    return mpi.COMM_WORLD.handle % 2**64


def translations(package=_PACKAGE):
    """The ABIs that this installation serves.

    Args:
        package: Path. The folder of the package. Defaults to that of this module.

    Returns:
        Dictionary from each ABI's name to the path of its translation.
    """
    files = {abi: pathlib.Path(package, f"_mpi_{abi}.so") for abi in NAMES}
    return {abi: path for abi, path in files.items() if path.exists()}


def list_of(abis):
    """The MPIs that some ABIs stand for, as words.

    Args:
        abis: Iterable of ABIs' names.
    """
    return "; ".join(NAMES[abi] for abi in abis) or "no MPI"
