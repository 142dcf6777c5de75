"""What goes wrong on GPUs ends the job, on all ranks, soon, and says what it was."""

import pathlib
import sys
import time

import mpi
import pytest
from gpu_stand_in import environment, folder

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("gpu_fault_job.py")
ON_CPUS = SCRIPT.with_name("cpu_only_job.py")


def run(*arguments, hosts="a,a", way="nccl", **env):
    ranks = hosts.count(",") + 1
    env = {**environment(hosts, way), **env}
    return mpi.run(ranks, SCRIPT, *arguments, env=env, timeout=60)


def assert_fails(done, *texts):
    assert done.returncode != 0, done.stdout
    for text in texts:
        assert text in done.stdout, done.stdout
    assert "has trained" not in done.stdout


def assert_trains(done):
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("has trained") == 2, done.stdout


def test_nothing_goes_wrong():
    done = run("well")
    assert_trains(done)
    assert "easyddl:" not in done.stdout


def test_the_end_of_the_script_waits_for_what_is_queued():
    done = run("ends_while_steps_are_queued", STAND_IN_DELAY="60000")
    assert_trains(done)
    assert "easyddl:" not in done.stdout


# The first collective is the rehearsal's.
@pytest.mark.gate
def test_an_error_of_nccl_ends_the_job():
    done = run("well", STAND_IN_FAULT="error,1,4")
    assert_fails(
        done,
        "easyddl: rank 1 on host a failed to reduce gradients on GPUs: ",
        "ncclAllReduce failed: unhandled system error (NCCL 2.27.3, error 2): "
        "injected: a system call failed",
        "Set NCCL_DEBUG=WARN for more",
    )


def test_an_error_in_the_hierarchy_ends_the_job():
    done = run("well", hosts="a,a,b,b", way="hierarchical", STAND_IN_FAULT="error,1,6")
    assert_fails(done, "ncclAllGather failed: unhandled system error")


def test_an_error_that_comes_up_later_ends_the_job():
    done = run("well", STAND_IN_FAULT="async,1,4")
    assert_fails(
        done,
        "An NCCL collective failed: remote process exited or there was a network error",
        "injected: a peer has gone",
    )


def test_a_collective_that_never_ends_is_ended():
    start = time.monotonic()
    done = run("well", STAND_IN_FAULT="hang,0,4", EASYDDL_STALL_WARN="1", EASYDDL_STALL_ABORT="8")
    assert time.monotonic() - start < 40
    assert_fails(
        done,
        "s in bucket 1 of 1 in step 2 of a model",
        "All ranks have entered it, so a GPU or a connection between GPUs hangs.",
        "That is too long: EASYDDL_STALL_ABORT is 8 s",
        "failed to reduce gradients on GPUs",
    )


# Other hosts wait for messages from the GPU that hangs.
def test_messages_from_a_gpu_that_never_come_are_no_longer_waited_for():
    start = time.monotonic()
    done = run(
        "well",
        hosts="a,a,b,b",
        way="hierarchical",
        STAND_IN_FAULT="hang,0,6",
        STAND_IN_OPEN="1",
        EASYDDL_CUDA_AWARE_MPI="1",
        EASYDDL_STALL_WARN="1",
        EASYDDL_STALL_ABORT="8",
    )
    assert time.monotonic() - start < 40
    assert_fails(
        done,
        "All ranks have entered it, so a GPU or a connection between GPUs hangs.",
        "That is too long: EASYDDL_STALL_ABORT is 8 s",
        "failed to reduce gradients on GPUs",
    )


@pytest.mark.parametrize("way", ["nccl", "host"])
def test_a_rank_that_stays_away_is_named(way):
    done = run("sleep", way=way, EASYDDL_STALL_WARN="1", EASYDDL_STALL_ABORT="8")
    late = "rank 1 on host a has not entered it"
    assert_fails(done, late, "That is too long", "in step 3 of a model")


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("init_error", "ncclCommInitRankConfig failed: unhandled system error"),
        ("init_hang", "s in the connection of GPUs by NCCL"),
    ],
)
def test_a_communicator_that_cannot_be_made(fault, text):
    done = run(
        "well", STAND_IN_FAULT=f"{fault},1,0", EASYDDL_STALL_WARN="1", EASYDDL_STALL_ABORT="8"
    )
    assert_fails(done, text)


def test_a_missing_nccl_says_what_to_install():
    wrong = str(pathlib.Path(__file__).parent)
    done = run("well", EASYDDL_NCCL_PATH=wrong)
    assert_fails(done, "EASYDDL_NCCL_PATH must name NCCL's library (libnccl.so.2) or its folder")
    assert f"Received: '{wrong}'" in done.stdout
    done = run("well", EASYDDL_NCCL_PATH="")
    if "easyddl: note" not in done.stdout and "has trained" not in done.stdout:
        assert_fails(done, "Rank 0 on host a cannot reduce gradients on its GPU:")
        assert "NCCL (libnccl.so.2) cannot be found" in done.stdout
        assert "`pip install nvidia-nccl-cu12`" in done.stdout
    # And it can be done without.
    assert_trains(run("well", way="host", EASYDDL_NCCL_PATH=""))


def test_a_missing_driver():
    done = run("well", STAND_IN_GPUS="0")
    assert_fails(done, "cuInit")


def test_an_old_nccl_says_what_to_install():
    done = run("well", STAND_IN_NCCL_VERSION="20805")
    assert_fails(done, "NCCL 2.8.5 (", "is too old: easyddl needs 2.14.3 or later", "pip install")


def test_ranks_with_different_versions_of_nccl():
    done = run("other_version")
    assert_fails(
        done,
        "The ranks have different versions of NCCL: Rank 0 on host a has 2.27.0, "
        "Rank 1 on host a has 2.27.1",
    )


def test_a_gpu_that_two_ranks_share():
    done = run("well", "--share")
    assert_fails(
        done,
        "Rank 0 on host a and Rank 1 on host a share one GPU, which NCCL refuses",
        "EASYDDL_GPU=host, which does not use NCCL",
    )
    note = "note: Rank 0 on host a and Rank 1 on host a share one GPU, which slows down both."
    done = run("well", "--share", "--host-ids")
    assert_trains(done)
    assert done.stdout.count(note) == 1
    new = {"STAND_IN_NCCL_VERSION": "23003", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    assert_trains(run("well", "--share", **new))
    assert_trains(run("well", "--share", way="host"))


def test_instances_of_one_gpu():
    done = run("well", STAND_IN_MIG="1")
    assert_fails(
        done,
        "Rank 0 on host a and Rank 1 on host a share one GPU, of which each has an instance (MIG), "
        "which NCCL refuses",
        "EASYDDL_GPU=host, which does not use NCCL",
    )
    assert "Duplicate GPU" not in done.stdout
    assert_trains(run("well", way="host", STAND_IN_MIG="1"))


def test_ranks_that_take_their_steps_in_different_orders():
    done = run("other_order", EASYDDL_STALL_WARN="2", EASYDDL_STALL_ABORT="20")
    assert_fails(done, "This is a deadlock", "in the control word of bucket 1 of 1 in step")


def test_a_communicator_is_made_once():
    done = run("three_exchanges", STAND_IN_COUNT="1")
    assert_trains(done)
    # Each id starts a thread of NCCL's that never ends.
    assert done.stdout.count("stand-in for NCCL: a new id") == 1, done.stdout
    assert done.stdout.count("stand-in for NCCL: a communicator") == 2, done.stdout


def test_a_wrong_way_is_refused():
    done = run("well", way="fast")
    assert_fails(done, "EASYDDL_GPU must be one of nccl, hierarchical and host. Received: 'fast'")


def test_a_wrong_word_on_mpi_is_refused():
    done = run("well", EASYDDL_CUDA_AWARE_MPI="yes")
    assert_fails(done, "EASYDDL_CUDA_AWARE_MPI must be 1 or 0", "Received: 'yes'")


def test_ranks_on_hosts_and_on_gpus():
    done = run("host_and_gpu", "--keras")
    assert_fails(
        done,
        "Rank 0 on host a submits arrays in GPU memory, but rank 1 on host a submits arrays in "
        "host memory, in the first step of a model",
    )


def test_ranks_on_cpus_open_none_of_it():
    # Though they could.
    done = mpi.run(2, ON_CPUS, env=environment("a,a", "nccl"), timeout=90)
    assert done.returncode == 0, done.stdout


@pytest.mark.gate
def test_the_folder_of_nccl_is_none_of_the_drivers(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import ctypes, pathlib\n"
        "import engine_only\n"
        "from easyddl.runtime import world\n"
        "core = world.engine().core\n"
        "try:\n"
        "    ctypes.CDLL('libcuda.so.1')\n"
        "except OSError:\n"
        "    try:\n"
        "        core.gpu_versions()\n"
        "    except core.Error as error:\n"
        "        assert 'the CUDA driver (libcuda.so.1) cannot be opened' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError('a driver was found')\n"
    )
    env = mpi.environment({"EASYDDL_NCCL_PATH": str(folder())})
    env.pop("EASYDDL_CUDA_PATH", None)
    done = mpi.run_command([sys.executable, script], env, timeout=60)
    assert done.returncode == 0, done.stdout
