"""The binary interfaces (ABIs) of MPI, and the translation library that easyddl has for each.

Libraries with the same ABI can replace each other without compiling again:

- `mpich`: MPICH, Intel MPI, Cray MPICH, MVAPICH (https://www.mpich.org/abi/);
- `openmpi`: Open MPI 4 and 5;
- `abi`: the standard ABI of MPI 5.0 (libmpi_abi);
- `other`: another MPI, for which easyddl was built from source.

The engine calls MPI through a small library for the ABI, `_mpi_<abi>.so` beside `_core`. A released
wheel has one for each ABI except `other`. A build from source has one for the MPI that it found.
"""

import pathlib

_PACKAGE = pathlib.Path(__file__).parents[1]

NAMES = {
    "mpich": "MPICH and compatible libraries (Intel MPI, Cray MPICH, MVAPICH)",
    "openmpi": "Open MPI",
    "abi": "libraries with the standard ABI of MPI 5.0",
    "other": "the MPI that easyddl was built with",
}

# MPI_COMM_WORLD in the ABI of MPICH, and in the standard ABI (MPI 5.0, section 20).
_WORLD_OF_MPICH = 0x44000000
_WORLD_OF_STANDARD = 0x101


def of_library(mpi):
    """Returns the ABI of the library that mpi4py has loaded.

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
    """Returns the library's MPI_COMM_WORLD, as an unsigned integer.

    Args:
        mpi: The module `mpi4py.MPI`.
    """
    return mpi.COMM_WORLD.handle % 2**64


def translations(package=_PACKAGE):
    """Returns the ABIs that this installation supports.

    Args:
        package: Path. The folder of the package. Defaults to the folder of this module's package.

    Returns:
        Dictionary from each ABI's name to the path of its translation.
    """
    files = {abi: pathlib.Path(package, f"_mpi_{abi}.so") for abi in NAMES}
    return {abi: path for abi, path in files.items() if path.exists()}


def list_of(abis):
    """Returns a text that lists the MPIs with some ABIs.

    Args:
        abis: Iterable of ABIs' names.
    """
    return "; ".join(NAMES[abi] for abi in abis) or "no MPI"
