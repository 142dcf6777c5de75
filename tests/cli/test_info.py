import pathlib
import subprocess
import sys

import gpu_stand_in
import mpi
import pytest


def info(**env):
    """Runs `easyddl info`, and returns its exit status and its lines by name."""
    done = subprocess.run(
        [sys.executable, "-m", "easyddl", "info"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=mpi.environment(env),
        timeout=60,
    )
    lines = (
        line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith(" ")
    )
    return done.returncode, {name: text for name, text in lines}, done.stdout


def test_what_is_in_use():
    status, lines, said = info(KERAS_BACKEND="jax")
    assert status == 0, said
    assert lines["Python"].endswith(f"({sys.executable})")
    assert "with the backend jax" in lines["Keras"]
    family = "Open MPI" if mpi.is_open_mpi() else "MPICH"
    assert family in lines["MPI"] and family in lines["supports"], said
    abi = "openmpi" if mpi.is_open_mpi() else "mpich"
    assert lines["engine"].startswith(f"for the ABI {abi}, built with {family}")
    assert "/libmpi.so" in said and "sums use" in lines["processor"]
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    assert ("sums use AVX" in lines["processor"]) == ("avx2" in flags), said


def test_an_mpi_that_is_missing():
    status, lines, said = info(MPI4PY_LIBMPI="/nonexistent/libmpi.so")
    assert status == 1
    sentence = lines["MPI"]
    assert sentence.startswith(
        "No MPI library could be loaded: install one from PyPI (`pip install mpich`"
    )
    assert "or load your site's" in sentence and "/nonexistent/libmpi.so: " in sentence, said
    assert "Traceback" not in said


def test_a_library_that_the_mpi_needs_is_missing(tmp_path):
    needed, library = tmp_path / "libneeded.so", tmp_path / "libmpi.so"
    for more, target in ([], needed), (["-Wl,--no-as-needed", needed], library):
        line = [gpu_stand_in.compiler(), "-shared", "-x", "c", "/dev/null", "-x", "none"]
        subprocess.run([*line, *more, "-o", target], check=True)
    needed.unlink()
    _, lines, said = info(MPI4PY_LIBMPI=str(library))
    assert f"; {needed}: cannot open shared object file" in lines["MPI"], said


@pytest.mark.parametrize("name", ["easyddl", "tensorflow", "mpirun", "NCCL", "kernel"])
def test_each_fact_has_a_line(name):
    assert name in info()[1]
