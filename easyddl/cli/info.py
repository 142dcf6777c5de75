"""Prints versions, backends, the MPI in use and why it is used, NCCL, and the processor.

Send its output with a bug report. The exit status is 0 if MPI and the engine can be loaded, and 1
if they cannot.
"""

import os
import platform
import sys

SUMMARY = "print the versions in use, and which MPI and why"


def add_arguments(parser):
    """Adds no arguments."""


def run(options):
    """Runs the subcommand.

    Args:
        options: Namespace of the arguments.

    Returns:
        The exit status.
    """
    # Import it here, because the list of subcommands does not need it.
    from easyddl.doctor import software
    from easyddl.launch.output import text_table

    facts = software.installed()
    mpi, core = _load()
    lines = [
        ("easyddl", f"{facts['easyddl']} ({software.folder()})"),
        ("Python", f"{facts['python']} ({sys.executable})"),
        ("Keras", f"{facts['keras']}, with the backend {facts['backend']}"),
        *((name, text or "not installed") for name, text in software.backends().items()),
        *_mpi_lines(mpi, core),
        ("mpirun", _mpirun()),
        ("NCCL", _nccl(core)),
        ("NVIDIA driver", facts["nvidia_driver"] or "none"),
        ("processor", _processor(core)),
        ("kernel", f"{facts['kernel']}, {platform.libc_ver()[0]} {platform.libc_ver()[1]}"),
    ]
    print("\n".join(text_table.lines(lines, left=(0, 1))))
    return 1 if isinstance(core, Exception) else 0


def _load():
    """Loads MPI and the engine.

    Returns:
        Pair: the module `mpi4py.MPI` and the engine. Each is replaced by the error if it cannot be
        loaded.
    """
    from easyddl.runtime import mpi_library

    try:
        mpi = mpi_library.load_mpi()
    except RuntimeError as error:
        return error, error
    try:
        return mpi, mpi_library.load_core(mpi)
    except RuntimeError as error:
        return mpi, error


def _mpi_lines(mpi, core):
    from easyddl.machine import packages
    from easyddl.runtime import mpi_abi

    supported = mpi_abi.list_of(mpi_abi.translations())
    if isinstance(mpi, Exception):
        return [("MPI", str(mpi)), ("supports", supported)]
    version = " ".join(mpi.Get_library_version().strip("\0 \n").splitlines()[0].split())
    lines = [("mpi4py", packages.version_of("mpi4py")), ("MPI", version)]
    if isinstance(core, Exception):
        return [*lines, ("engine", str(core)), ("supports", supported)]
    return [
        *lines,
        ("", f"{core.mpi_library_path()}: {_why(core.mpi_library_path())}"),
        (
            "engine",
            f"for the ABI {mpi_abi.of_library(mpi)}, built with {core.built_with()}",
        ),
        ("supports", supported),
    ]


def _why(path):
    """Returns the reason why mpi4py has loaded this library."""
    if os.environ.get("MPI4PY_LIBMPI"):
        return "MPI4PY_LIBMPI names it"
    if path.startswith(sys.prefix + os.sep):
        return "it is in this Python's environment"
    if os.path.dirname(path) in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        return "LD_LIBRARY_PATH names its folder"
    return "the loader found it, or mpi4py was built with it"


def _mpirun():
    from easyddl.launch.start import mpirun

    try:
        found = mpirun.find()
    except RuntimeError as error:
        return str(error)
    return f"{found.mpirun} ({found.version})"


def _nccl(core):
    if isinstance(core, Exception):
        return "not examined"
    from easyddl.runtime import mpi_library

    core.set_nccl_folders(mpi_library.nccl_folders())
    try:
        return "{} ({})".format(*core.nccl_version_and_path())
    except core.Error:
        return "none, which only jobs on GPUs need"


def _processor(core):
    from easyddl.machine import hardware

    facts = hardware.facts()
    text = f"{facts['model']}, {hardware.usable_physical_cores()} usable cores"
    return text if isinstance(core, Exception) else f"{text}; sums use {core.instruction_set()}"
