"""The versions of a host's software: Python, easyddl, Keras and its backend, MPI, NCCL."""

import hashlib
import importlib.util
import os
import pathlib
import platform
import re
import subprocess
import sys

from easyddl.machine import process_tree
from easyddl.machine.kernel_file import read_text
from easyddl.machine.packages import version_of
from easyddl.runtime import command_process, keras_backend, mpi_library

_PRINT_MPI = command_process.python("easyddl.doctor.software")
_BACKENDS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "jax": ("jax",),
    "torch": ("torch",),
}
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
_DRIVER = pathlib.Path("/proc/driver/nvidia/version")
_TIMEOUT = 40


def facts():
    """Reads the versions, without importing a framework.

    Returns:
        Dictionary of strings. A value is `None` if the software is not installed. `mpi_error` says
        why MPI or the engine cannot be loaded.
    """
    mpi, mpi_error = _mpi()
    return {**installed(), "mpi": mpi, "mpi_error": mpi_error}


def installed():
    """Reads the versions that can be read without loading MPI.

    Returns:
        Dictionary as from `facts`, without `mpi` and `mpi_error`.
    """
    backend = keras_backend.selected()
    return {
        "python": platform.python_version(),
        "executable": sys.executable,
        "easyddl": version_of("easyddl"),
        "easyddl_files": _digest(),
        "keras": version_of("keras"),
        "backend": backend,
        "backend_version": version_of(*_BACKENDS.get(backend, (backend,))),
        "mpi4py": version_of("mpi4py"),
        "nccl": version_of(*_NCCL),
        "nvidia_driver": _driver(),
        "kernel": platform.release(),
    }


def backends():
    """Returns the versions of the Keras backends.

    Returns:
        Dictionary from the name of each backend to its version, or `None` if it is not installed.
    """
    return {name: version_of(*packages) for name, packages in _BACKENDS.items()}


def folder():
    """Returns the folder of the package easyddl that is in use."""
    spec = importlib.util.find_spec("easyddl.doctor")
    return pathlib.Path(next(iter(spec.submodule_search_locations))).parent


def _digest():
    """Returns a short hash of easyddl's Python files, to compare copies of the same version."""
    digest = hashlib.sha256()
    for path in sorted(folder().rglob("*.py")):
        digest.update(str(path.relative_to(folder())).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _mpi():
    """Loads MPI and the engine in a separate process.

    Returns:
        Pair: the name and version of the MPI, and the error. One of them is `None`.
    """
    own = os.getpid()
    try:
        done = subprocess.run(
            _PRINT_MPI, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=_TIMEOUT, preexec_fn=lambda: process_tree.die_with_parent(own),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None, f"it did not load within {_TIMEOUT} seconds"
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return None, lines[-1] if lines else f"exit status {done.returncode}"
    return mpi_name(done.stdout), None


def mpi_name(version):
    """Shortens the version text of an MPI library, for example to `"MPICH 5.0.2"`."""
    first = version.strip("\0 \n").partition("\n")[0].partition(",")[0]
    return " ".join(first.replace("Version:", "").split())


def _driver():
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(\.\d+)?)\s", read_text(_DRIVER))
    return found[1] if found else None


if __name__ == "__main__":  # in the separate process of `_mpi`
    mpi = mpi_library.load_mpi()
    mpi_library.load_core(mpi)
    print(mpi.Get_library_version())
