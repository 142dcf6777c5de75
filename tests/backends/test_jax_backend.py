"""What easyddl does at import on JAX, in processes of their own: a framework is enough for each."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

pytest.importorskip("jax")

# What mpirun tells the second of three ranks on one host.
RANK = {"PMI_SIZE": "3", "PMI_RANK": "1", "MPI_LOCALNRANKS": "3", "MPI_LOCALRANKID": "1"}


def run(code, **env):
    """What a script prints that imports easyddl on JAX."""
    unset = ("NPROC", "XLA_FLAGS", "CUDA_VISIBLE_DEVICES", "XLA_PYTHON_CLIENT_PREALLOCATE")
    clean = {name: value for name, value in os.environ.items() if name not in unset}
    # At its end a rank would look for the others.
    code = f"import os, sys\n{code}\nsys.stdout.flush()\nos._exit(0)"
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        env={**clean, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", **env},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_no_other_framework_is_imported():
    loaded = run("import easyddl; easyddl.split_data; print(*sys.modules)")
    assert "jax" in loaded
    assert not {"tensorflow", "torch", "tf_keras"} & set(loaded)


TOLD = """
import easyddl, jax
print(os.environ.get("NPROC"), jax.config.read("jax_cuda_visible_devices"),
      os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE"))
"""


def test_each_rank_takes_its_cores_and_its_gpu():
    share = str(max(1, len(os.sched_getaffinity(0)) // 3))
    assert run(TOLD, **RANK, CUDA_VISIBLE_DEVICES="4,5") == [share, "1", "false"]
    assert run(TOLD, **RANK, CUDA_VISIBLE_DEVICES="4,5,6") == [share, "1", "None"]


def test_a_gpu_that_only_mpi_can_tell():
    env = {**RANK, "MPI_LOCALRANKID": "", "CUDA_VISIBLE_DEVICES": "4,5,6"}
    assert run(TOLD, **env)[1] == "all"
    pin = "easyddl.backends.require().pin_gpu(4)"
    assert run(TOLD.replace("print(", f"{pin}\nprint(", 1), **env)[1] == "1"


def test_what_the_user_has_set_stays():
    assert run(TOLD)[0] == "None"  # one process alone takes all
    mine = "import jax; jax.config.update('jax_cuda_visible_devices', '2')\n"
    env = {"NPROC": "7", "CUDA_VISIBLE_DEVICES": "4,5,6"}
    assert run(mine + TOLD, **RANK, **env) == ["7", "2", "None"]
    flags = "--xla_cpu_multi_thread_eigen=false"
    assert run(TOLD, **RANK, CUDA_VISIBLE_DEVICES="", XLA_FLAGS=flags)[:2] == ["None", "all"]


def test_importing_after_jax_has_begun_warns():
    code = """
import jax
jax.numpy.ones(1) + 1
try:
    import easyddl
except UserWarning as warning:
    print(warning)
"""
    assert "Import easyddl first." in " ".join(run(code, **RANK))
