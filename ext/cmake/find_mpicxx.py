"""Print the path of the MPI C++ compiler wrapper to build easyddl with.

The extension works only with MPIs that are compatible with the ``mpi.h`` that it was compiled with,
so this must be the MPI that will run it. The first of these that exists is used:

1. The wrapper that the environment variable ``MPICXX`` names.
2. ``bin/mpicxx`` in the environment of the Python that builds, whether or not it is activated.
   pip builds with the Python for which it installs.
3. ``mpicxx`` on ``PATH``.
4. ``mpicxx`` of the ``mpich`` wheel, a build requirement of easyddl.

pip puts its build environment, which has that wheel, first on ``PATH``, so step 3 skips it.
``build`` and ``uv`` build in a temporary virtual environment, so step 2 skips it. They also hide
the environment for which they install, so set ``MPICXX`` with them if its MPI is not on ``PATH``.
"""

import importlib.metadata
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

WRAPPER = "mpicxx"

INSTALL_MPI = (
    "install one (for example `pip install mpich`, `apt-get install libmpich-dev` or "
    "`apt-get install libopenmpi-dev`)"
)


def find_mpicxx(environ: Mapping[str, str], prefix: Path, wheel: Path | None) -> Path:
    """Return the path of the wrapper to build with.

    Args:
        environ: The environment variables; `MPICXX` and `PATH` are read.
        prefix: The prefix of the Python that builds.
        wheel: The wrapper of the `mpich` wheel, if that is installed.

    Raises:
        FileNotFoundError: If there is none. The message says what to install.
    """
    own = [prefix / "bin"]
    skipped = [wheel.parent] if wheel else []
    if is_build_environment(prefix):
        skipped += own
        own = []
    path = [
        directory
        for directory in environ.get("PATH", os.defpath).split(os.pathsep)
        if directory and not any(same(directory, other) for other in skipped)
    ]

    wanted = environ.get("MPICXX")
    if wanted:
        found = shutil.which(wanted, path=os.pathsep.join(path))
        if not found:
            raise FileNotFoundError(
                f"easyddl needs an MPI library to build, but MPICXX={wanted} is not an executable: "
                f"{INSTALL_MPI} and set MPICXX to its mpicxx, or unset MPICXX."
            )
        return Path(found)

    found = shutil.which(WRAPPER, path=os.pathsep.join([*map(str, own), *path])) or wheel
    if not found:
        raise FileNotFoundError(
            f"easyddl needs an MPI library to build: {INSTALL_MPI}, "
            "or set MPICXX to the path of its mpicxx."
        )
    return Path(found)


def is_build_environment(prefix: Path) -> bool:
    """Return whether this is the prefix of a temporary build environment of `build` or `uv`."""
    return prefix.name.startswith("build-env-") or prefix.parent.name.startswith("builds-v")


def same(directory: str | Path, other: str | Path) -> bool:
    """Return whether the two paths are the same directory."""
    return os.path.realpath(directory) == os.path.realpath(other)


def wheel_mpicxx() -> Path | None:
    """Return the wrapper that the `mpich` wheel installed, or None without that wheel."""
    try:
        wheel = importlib.metadata.distribution("mpich")
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in wheel.files or []:
        if file.name == WRAPPER:
            return Path(os.path.normpath(wheel.locate_file(file)))
    return None


if __name__ == "__main__":
    try:
        print(find_mpicxx(os.environ, Path(sys.prefix), wheel_mpicxx()))
    except FileNotFoundError as error:
        sys.exit(str(error))
