"""Python environments whose mpirun is a script of a test."""

import pathlib
import sys

import mpi
import pytest

# Begins a script: what it runs first, so that easyddl takes it for the mpirun of the MPI here.
VERSION = f'if [ "$1" = --version ]; then exec {mpi.mpirun()} --version; fi; '


def environment(folder, script):
    """Makes an environment with an mpirun of its own.

    Args:
        folder: `pathlib.Path`. An empty folder.
        script: String. What mpirun does, for sh.

    Returns:
        String. The path of its python.
    """
    here = pathlib.Path(sys.executable).parent
    if not (here.parent / "pyvenv.cfg").exists():
        pytest.skip("needs a virtual environment, to make another one")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    for name in ("lib", "lib64", "pyvenv.cfg"):
        if (here.parent / name).exists():
            (folder / name).symlink_to(here.parent / name)
    mpirun = folder / "bin" / "mpirun"
    mpirun.write_text(f"#!/bin/sh\n{script}\n")
    mpirun.chmod(0o755)
    return str(folder / "bin" / "python")
