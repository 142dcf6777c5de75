"""Which MPI starts the job: its mpirun, and whose it is."""

import dataclasses
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

HYDRA, INTEL, OPEN_MPI_4, OPEN_MPI_5 = "MPICH", "Intel MPI", "Open MPI 4", "Open MPI 5"

_SONAMES = {HYDRA: b"libmpi.so.12", INTEL: b"libmpi.so.12"}  # others: Open MPI's
_OPEN_MPI_SONAME = b"libmpi.so.40"


@dataclasses.dataclass(frozen=True)
class Mpi:
    """An MPI's launcher.

    Attributes:
        family: One of the names above.
        mpirun: String. The path of its mpirun.
        version: String. The first line that tells its version.
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
    mpi = recognize(mpirun, _version_of(mpirun))
    _check_engine(mpi)
    return mpi


def _version_of(mpirun):
    try:
        shown = subprocess.run(
            [mpirun, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=20,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"`{mpirun} --version` failed: {error}") from None
    return shown.stdout


def recognize(mpirun, shown):
    """Recognizes an MPI by what its `mpirun --version` prints.

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
    """Raises an error if the extension was built with another family of MPI."""
    extension = importlib.util.find_spec("easyddl._core")
    if extension is None or not extension.origin:
        return  # the ranks tell what is missing
    binary = pathlib.Path(extension.origin).read_bytes()
    wanted = _SONAMES.get(mpi.family, _OPEN_MPI_SONAME)
    sonames = {wanted, _OPEN_MPI_SONAME, _SONAMES[HYDRA]}
    built_with = [name.decode() for name in sonames if name + b"\0" in binary]
    if built_with and wanted.decode() not in built_with:
        raise RuntimeError(
            f"{mpi.mpirun} is of {mpi.family}, but easyddl was built with another MPI (it needs "
            f"{built_with[0]}). Put the mpirun of that MPI first on PATH, or install easyddl again:"
            " `pip install --force-reinstall --no-deps --no-cache-dir easyddl`."
        )
