"""Gradients on GPUs, by every way, on the stand-ins for NCCL and the CUDA driver."""

import pathlib

import gpu_stand_in
import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("gpu_path_checks.py")

# The host of each rank, where one machine plays several, and the ways. NCCL's own is the same on
# any number of hosts.
JOBS = [
    ("a", "nccl"),
    ("a,a,a,a", "nccl"),
    ("a,b", "hierarchical"),
    ("a,a,b,b", "hierarchical"),
    ("a,a,b,b", "host"),
    pytest.param("a,a,b", "hierarchical", marks=pytest.mark.gate),  # hosts of unequal size
    ("a,a,b", ""),
]
# Eight ranks make a slow job: what depends on their number.
LARGE = "a,a,a,a,b,b,b,b"
CHECKS_OF_MANY = (
    "check_floats_of_all_sizes",
    "check_what_is_queued_next_waits_for_the_exchange",
    "check_weights",
    "check_ranks_that_have_joined_take_part_with_zeros",
)


@pytest.mark.parametrize(
    ("hosts", "way"),
    [*JOBS, pytest.param("a,a,b,b", "nccl", marks=pytest.mark.soak)],
    ids=lambda each: each or "chosen",
)
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_gpu_path(hosts, way, check):
    mpi.assert_check(hosts.count(",") + 1, SCRIPT, check, **gpu_stand_in.environment(hosts, way))


# An MPI that takes memory of GPUs: any does, where the stand-in lets it.
@pytest.mark.parametrize(
    ("hosts", "racks", "order"),
    [
        ("a,b", "", ""),
        pytest.param("a,a,b,b", "", "", marks=pytest.mark.soak),
        ("a,a,b", "", ""),  # hosts of unequal size
        ("a,b,c", "x,x,y", "1,2,0"),  # racks of unequal size
    ],
)
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_an_mpi_that_takes_memory_of_gpus(hosts, racks, order, check):
    aware = {"EASYDDL_CUDA_AWARE_MPI": "1", "STAND_IN_OPEN": "1"}
    layout = {"EASYDDL_RACKS": racks, "EASYDDL_HOST_ORDER": order}
    env = gpu_stand_in.environment(hosts, "hierarchical", **aware, **layout)
    mpi.assert_check(hosts.count(",") + 1, SCRIPT, check, **env)


# An MPI that could is given none unless it is asked for.
@pytest.mark.parametrize(("wish", "is_open"), [("", "0"), ("0", "0"), ("1", "1")])
def test_an_mpi_is_given_memory_of_gpus_where_that_is_wished(wish, is_open):
    check = "check_how_much_is_copied_to_the_host"
    env = gpu_stand_in.environment(
        "a,b", "hierarchical", STAND_IN_OPEN=is_open, EASYDDL_CUDA_AWARE_MPI=wish
    )
    mpi.assert_check(2, SCRIPT, check, (check,), **env)


@pytest.mark.parametrize("way", ["nccl", "hierarchical"])
@pytest.mark.parametrize("check", CHECKS_OF_MANY)
def test_eight_ranks(way, check):
    mpi.assert_check(8, SCRIPT, check, CHECKS_OF_MANY, **gpu_stand_in.environment(LARGE, way))


@pytest.mark.soak
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_eight_ranks_and_all_checks(check):
    mpi.assert_check(8, SCRIPT, check, **gpu_stand_in.environment(LARGE, "hierarchical"))


# All streams of a process in one: what waits for what comes after it waits for ever.
@pytest.mark.parametrize(("hosts", "way"), [("a,a", "nccl"), ("a,b", "hierarchical"), ("a,b", "")])
@pytest.mark.parametrize("check", mpi.checks_of(SCRIPT))
def test_one_hardware_queue(hosts, way, check):
    env = gpu_stand_in.environment(hosts, way, CUDA_DEVICE_MAX_CONNECTIONS="1")
    mpi.assert_check(2, SCRIPT, check, **env)


def test_each_rank_takes_a_gpu_of_its_own_though_only_mpi_tells_its_place():
    mpi.require("jax")
    env = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "4,5"}
    done = mpi.run(2, SCRIPT.with_name("local_rank_job.py"), env=env, timeout=120)
    assert done.returncode == 0, done.stdout
