"""What only a real GPU can tell. Without one these are skipped.

python -m pytest tests/gpu -rs
"""

import functools
import pathlib
import shutil
import subprocess
import sys

import gpu_stand_in
import mpi
import numpy as np
import pytest

TESTS = pathlib.Path(__file__).parents[1]
FIT = TESTS / "gpu" / "fit_job.py"
CHECKS = TESTS / "gpu_stand_in" / "gpu_path_checks.py"
FAULTS = CHECKS.with_name("gpu_fault_job.py")
BENCHMARKS = TESTS.parent / "tutorials" / "benchmarks"

# They need no work on the GPU but copies.
ON_ANY_GPU = (
    "check_floats_of_all_sizes",
    "check_dtypes_side_by_side",
    "check_large_buckets",
    "check_the_exchange_waits_for_what_was_queued_before",
    "check_buckets_that_leave_on_a_stream_beside",
    "check_what_is_handed_in_lives_until_it_is_done",
    "check_weights",
    "check_plain_gradients_are_averaged_as_they_are",
    "check_ranks_that_have_joined_take_part_with_zeros",
    "check_ranks_that_have_joined_several_exchanges",
    "check_steps_of_two_exchanges_are_not_mixed",
    "check_an_exchange_that_ends_in_the_middle_of_a_step",
    "check_a_framework_on_the_null_stream",
    "check_a_step_that_is_captured_is_refused",
    "check_one_rank_asks_all_to_stop",
    "check_two_exchanges_at_once",
    "check_close_and_open_again",
    "check_many_steps",
    "check_the_same_bits_in_every_run_of_a_way",
    "check_what_is_refused",
)


@functools.cache
def gpus():
    """How many NVIDIA GPUs this machine has."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    done = subprocess.run([tool, "-L"], capture_output=True, text=True)
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


pytestmark = [
    pytest.mark.mpirun,
    pytest.mark.gate,
    pytest.mark.gpu,
    pytest.mark.skipif(gpus() == 0, reason="nvidia-smi lists no GPU on this machine"),
]


def run(ranks, script, *arguments, **env):
    done = mpi.run(ranks, script, *arguments, env=env)
    assert done.returncode == 0, done.stdout
    return done.stdout


def shared(ranks):
    """Arguments for as many ranks, if there are fewer GPUs."""
    return ["--share"] if ranks > gpus() else []


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("way", ["nccl", "host"])
def test_the_path(ranks, way, tmp_path):
    env = {"EASYDDL_GPU": way, "EASYDDL_TEST_RESULTS": str(tmp_path)}
    run(ranks, CHECKS, *ON_ANY_GPU, *shared(ranks), **env)


@pytest.mark.parametrize("aware", ["0", "1"])
def test_the_hierarchy_on_two_hosts(aware, tmp_path):
    if aware == "1" and not takes_gpu_memory():
        pytest.skip("this MPI does not take memory of GPUs")
    env = {"EASYDDL_HOSTS": "a,a,b,b", "EASYDDL_CUDA_AWARE_MPI": aware}
    env["EASYDDL_TEST_RESULTS"] = str(tmp_path)
    run(4, CHECKS, *ON_ANY_GPU, "--share", EASYDDL_GPU="hierarchical", **env)


def takes_gpu_memory():
    """Whether the MPI in use says so."""
    ask = "print(ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support())"
    done = mpi.run(1, "-c", f"import ctypes; from mpi4py import MPI; {ask}")
    return done.stdout.split()[-1:] == ["1"]


@pytest.mark.parametrize(
    ("hosts", "way"), [("a,a", "nccl"), ("a,a,b,b", "hierarchical"), ("a,a", "host")]
)
def test_what_touches_the_host(hosts, way, tmp_path):
    """Nothing within a host, and each byte once where it crosses hosts."""
    env = {"EASYDDL_CUDA_PATH": str(gpu_stand_in.folder() / gpu_stand_in.COUNTING)}
    env |= {"EASYDDL_HOSTS": hosts, "EASYDDL_GPU": way, "EASYDDL_CUDA_AWARE_MPI": "0"}
    env["EASYDDL_TEST_RESULTS"] = str(tmp_path)
    run(hosts.count(",") + 1, CHECKS, "check_how_much_is_copied_to_the_host", "--share", **env)


@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_fit_on_gpus_equals_one_on_cpus(backend, ranks, tmp_path):
    mpi.require(backend)
    env = {"KERAS_BACKEND": backend, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    # A GPU multiplies with the precision of a CPU only if it is told to.
    env |= {"NVIDIA_TF32_OVERRIDE": "0", "JAX_DEFAULT_MATMUL_PRECISION": "highest"}
    results = []
    for device, more in (("gpu", {}), ("cpu", {"CUDA_VISIBLE_DEVICES": ""})):
        file = tmp_path / f"{device}.npy"
        run(ranks, FIT, file, *shared(ranks), **env, **more)
        results.append(np.load(file))
    np.testing.assert_allclose(*results, rtol=1e-3, atol=1e-4)


def fault(how, *arguments, **env):
    """What a job of two ranks says that has `how` go wrong."""
    arguments += ("--share", "--host-ids") if gpus() < 2 else ()
    return mpi.run(2, FAULTS, how, *arguments, env=env, timeout=120)


@pytest.mark.parametrize("how", ["well", "three_exchanges", "ends_while_steps_are_queued"])
@pytest.mark.parametrize("way", ["nccl", "host"])
def test_what_ends_well(how, way):
    done = fault(how, EASYDDL_GPU=way)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("has trained") == 2, done.stdout


DEADLINES = {"EASYDDL_STALL_WARN": "2", "EASYDDL_STALL_ABORT": "10"}


@pytest.mark.parametrize("way", ["nccl", "host"])
@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("sleep", "has not entered it"),
        ("killed", "Rank 1 "),
        ("raises", "RuntimeError: one rank alone"),
        ("other_order", "This is a deadlock"),
    ],
)
def test_what_goes_wrong_ends_the_job_with_its_reason(how, text, way):
    done = fault(how, EASYDDL_GPU=way, **DEADLINES)
    assert done.returncode != 0, done.stdout
    assert text.lower() in done.stdout.lower(), done.stdout
    assert "has trained" not in done.stdout


def test_ranks_that_share_a_gpu_are_refused_by_nccl():
    done = mpi.run(2, FAULTS, "well", "--share", env={"EASYDDL_GPU": "nccl"}, timeout=120)
    assert done.returncode != 0, done.stdout
    assert "share one GPU, which NCCL refuses" in done.stdout, done.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_cost_beside_nccl(ranks):
    said = run(ranks, BENCHMARKS / "nccl.py", *shared(ranks))
    print(said)
    assert len([float(line.split()[3]) for line in said.splitlines()[2:]]) == 5, said


@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
def test_the_cost_beside_plain_keras(backend):
    mpi.require(backend)
    line = [sys.executable, BENCHMARKS / "beside_keras.py", "--backend", backend]
    line += ["--ranks", *{1, gpus()}]
    done = mpi.run_command([*map(str, line)], mpi.environment({"KERAS_BACKEND": backend}))
    print(done.stdout)
    assert done.returncode == 0, done.stdout
