"""Finds the mpirun that starts the job, and recognizes its MPI."""

import dataclasses
import pathlib
import re
import shutil
import subprocess
import sys

from easyddl.runtime import mpi_abi

HYDRA, INTEL, OPEN_MPI_4, OPEN_MPI_5 = "MPICH", "Intel MPI", "Open MPI 4", "Open MPI 5"


@dataclasses.dataclass(frozen=True)
class Mpi:
    """An MPI's launcher.

    Attributes:
        family: One of the names above.
        mpirun: String. The path of its mpirun.
        version: String. The line of its output that names the version.
    """

    family: str
    mpirun: str
    version: str

    @property
    def is_open_mpi(self):
        """Whether this is Open MPI."""
        return self.family in (OPEN_MPI_4, OPEN_MPI_5)


def find():
    """Finds the mpirun of this Python's environment, else the one on PATH.

    Returns:
        `Mpi`.

    Raises:
        RuntimeError: If there is none, it cannot be run, or is not of the MPI that easyddl was
            built with.
    """
    beside = pathlib.Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise RuntimeError(
            f"No mpirun was found beside {sys.executable} or on PATH. Install an MPI, for example "
            "with `pip install mpich`, or load your site's module."
        )
    try:
        mpi = recognize(mpirun, printed_by(mpirun, "--version"))
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"`{mpirun} --version` failed: {error}") from None
    _check_engine(mpi)
    return mpi


def printed_by(*command):
    """Returns all that a program prints.

    Args:
        *command: Strings. The program and its arguments.

    Raises:
        OSError: If it cannot be started.
        TimeoutExpired: If it runs for too long.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=20,
    ).stdout


def recognize(mpirun, shown):
    """Recognizes an MPI by the output of `mpirun --version`.

    Raises:
        RuntimeError: If it is not known.
    """
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    if "Intel(R) MPI" in shown:
        return Mpi(INTEL, mpirun, lines[0])
    if "HYDRA" in shown:
        version = re.search(r"Version:\s*(\S+)", shown)
        return Mpi(HYDRA, mpirun, f"MPICH {version[1] if version else ''}".strip())
    found = re.search(r"\(Open MPI\)\s+(\d+)\S*", shown)
    if found:
        return Mpi(OPEN_MPI_4 if int(found[1]) < 5 else OPEN_MPI_5, mpirun, lines[0])
    if "prte" in shown.lower():
        return Mpi(OPEN_MPI_5, mpirun, lines[0])
    raise RuntimeError(
        f"{mpirun} is of no MPI that easyddl knows (MPICH, Intel MPI, Open MPI). Start the job "
        f"with it directly. `{mpirun} --version` printed: {' / '.join(lines[:3]) or 'nothing'}"
    )


def _check_engine(mpi):
    """Raises an error if this installation certainly does not support that MPI."""
    served = mpi_abi.translations()
    wanted = "openmpi" if mpi.is_open_mpi else "mpich"
    # Without any, the ranks tell what is missing. The others may be of any family.
    if not served or {wanted, "abi", "other"} & served.keys():
        return
    raise RuntimeError(
        f"{mpi.mpirun} is of {mpi.family}, but this installation of easyddl supports "
        f"{mpi_abi.list_of(served)}. Put the mpirun of such an MPI first on PATH, or build easyddl "
        "from its sources for this one: `pip install --force-reinstall --no-deps --no-cache-dir "
        "PATH`, where PATH is a clone of its repository."
    )
