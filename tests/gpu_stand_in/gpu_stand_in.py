"""Stand-ins for NCCL and the CUDA driver, built where they are needed."""

import functools
import os
import pathlib
import shutil
import subprocess
import sys

import builds

SOURCES = pathlib.Path(__file__).parent
COUNTING = "counting"  # the folder of the driver that counts
COMPLETE = "complete"  # a file that is written after all libraries


def compiler():
    """The C++ compiler: that of CXX, or the host's."""
    found = next(filter(None, map(shutil.which, [os.environ.get("CXX", ""), "c++", "g++"])), None)
    assert found, "the stand-ins for NCCL and CUDA need a C++ compiler, as easyddl itself does"
    return found


def build(folder):
    """Builds the libraries into a folder."""
    flags = ["-std=c++17", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread"]
    strict = ["-Wall", "-Wextra", "-Werror", "-Wl,--no-undefined"]
    beside = ["-Wl,-rpath,$ORIGIN"]
    driver = "libcuda.so.1"
    (folder / COUNTING).mkdir()
    for source, library, more in [
        ("cuda.cpp", driver, [f"-Wl,-soname,{driver}", *beside]),
        ("nccl.cpp", "libnccl.so.2", ["-Wl,-soname,libnccl.so.2", *beside, f"-l:{driver}"]),
        ("counting.cpp", f"{COUNTING}/{driver}", ["-Wl,--no-as-needed", f"-l:{driver}", "-ldl"]),
    ]:
        line = [compiler(), *flags, *strict, SOURCES / source, f"-L{folder}"]
        line += [*more, "-lrt", "-o", folder / library]
        done = subprocess.run(line, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr


@functools.cache
def folder():
    """A folder that holds them, built once for the sources as they are."""
    sources = [path.read_bytes() for path in sorted(SOURCES.glob("*.cpp"))]
    with builds.folder("gpu_stand_in", compiler(), sources) as made:
        if not (made / COMPLETE).exists():
            shutil.rmtree(made / COUNTING, ignore_errors=True)
            build(made)
            (made / COMPLETE).touch()
    return made


def environment(hosts, way, **more):
    """The environment of a job whose ranks have the stand-ins, on some hosts.

    Args:
        hosts: String, as in EASYDDL_HOSTS.
        way: String, as in EASYDDL_GPU.
        **more: What it has besides.
    """
    libraries = str(folder())
    return {
        "EASYDDL_CUDA_PATH": libraries,
        "EASYDDL_NCCL_PATH": libraries,
        "EASYDDL_HOSTS": hosts,
        "EASYDDL_GPU": way,
        "STAND_IN_DELAY": "200",
        **more,
    }


if __name__ == "__main__":
    pathlib.Path(sys.argv[1]).mkdir(exist_ok=True)
    build(pathlib.Path(sys.argv[1]))
