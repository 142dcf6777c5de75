"""The start of a job in which not all ranks come as far: it ends soon, and says why."""

import functools
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import gpu_stand_in
import mpi
import pytest

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("start_job.py")
FAULTS = pathlib.Path(__file__).with_name("system_faults.cpp")
HOST = socket.gethostname()
IN_INIT = "in the start of easyddl, in MPI_Init."
IN_SETTINGS = "in the start of easyddl, in the comparison of the ranks' settings."


def run(ranks, how, env=None, prefix=(), warn=1, abort=3):
    env = {"EASYDDL_STALL_WARN": str(warn), "EASYDDL_STALL_ABORT": str(abort), **(env or {})}
    line = mpi.command(ranks, [*prefix, sys.executable, SCRIPT, how])
    return mpi.run_command(line, mpi.environment(env), timeout=60)


@functools.cache
def system_faults():
    """The library that makes calls of the system fail, built once in a process."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="easyddl-faults-"))
    library = folder / "libfaults.so"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    line = [gpu_stand_in.compiler(), *flags, FAULTS, "-ldl", "-o", library]
    done = subprocess.run(line, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return library


@pytest.fixture(scope="module", autouse=True)
def removed_at_the_end():
    yield
    if system_faults.cache_info().currsize:
        shutil.rmtree(system_faults().parent)


@pytest.mark.parametrize(
    ("how", "step"), [("module_is_missing", IN_INIT), ("never_comes", IN_SETTINGS)]
)
def test_ranks_do_not_wait_for_ever_for_one_that_never_comes(how, step):
    """It has failed before it imported easyddl, or is elsewhere."""
    begun = time.monotonic()
    done = run(3, how)
    assert done.returncode != 0
    assert time.monotonic() - begun < 30
    if how == "never_comes" or "has waited for" in done.stdout:  # launchers differ in this
        for rank in (0, 2):
            waits = rf"easyddl: warning: rank {rank} on host {HOST} has waited for 1 s {step}"
            assert re.search(waits, done.stdout), done.stdout
        assert re.search(
            rf"easyddl: rank [02] on host {HOST} has waited for 3 s {step} That is too long: "
            "EASYDDL_STALL_ABORT is 3 s",
            done.stdout,
        ), done.stdout
        assert "rank 1 on host" not in done.stdout
    if how == "module_is_missing":
        assert "No module named 'a_module_that_is_not_installed'" in done.stdout


def test_what_tensorflow_tells_for_information_comes_once():
    script = (
        "import easyddl, os, tensorflow as tf; tf.function(lambda: tf.ones(3), jit_compile=True)();"
        # A line in one piece, which the other rank's messages cannot part.
        "os.write(1, f'\\nlevel {os.environ.get(\"TF_CPP_MIN_LOG_LEVEL\")}\\n'.encode())"
    )
    line = mpi.command(2, [sys.executable, "-c", script])
    env = mpi.environment()
    del env["TF_CPP_MIN_LOG_LEVEL"]
    done = mpi.run_command(line, env, timeout=120)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("initialized for platform Host") == 1, done.stdout
    levels = re.findall(r"^level (\w+)$", done.stdout, re.MULTILINE)
    assert sorted(levels) == ["1", "None"], done.stdout  # 1 leaves warnings and errors


@pytest.mark.gate
def test_a_rank_that_has_ended_before_the_start_of_mpi_ends_the_job():
    left_behind = subprocess.run(
        ["sh", "-c", "sleep 100 >&- 2>&- & echo $!"],
        env={**os.environ, "MPI_LOCALRANKID": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    try:
        done = run(3, "ended", warn=0, abort=0)
    finally:
        os.kill(int(left_behind.stdout), signal.SIGKILL)
    assert done.returncode == 1 if mpi.is_open_mpi() else done.returncode != 0
    said = (
        rf"rank [02] on host {HOST} has waited for \d s {IN_INIT} MPI cannot start: of the 3 ranks"
    )
    assert re.search(rf"easyddl: {said} on this host, 1 has already ended\.", done.stdout), (
        done.stdout
    )


# In the background, a rank outlives the process that its launcher knows.
@pytest.mark.parametrize("prefix", [(), ("/bin/sh", "-c", '"$@" &', "sh")])
def test_a_rank_that_comes_late_is_waited_for(prefix):
    done = run(2, "late_in_init", prefix=prefix, abort=30)
    assert done.returncode == 0 and done.stdout.count("has started") == 2, done.stdout
    assert f"easyddl: warning: rank 0 on host {HOST} has waited for 1 s {IN_INIT}" in done.stdout


@pytest.mark.parametrize(("how", "step"), [("interrupted_in_init", IN_INIT),
                                           ("interrupted", IN_SETTINGS)])  # fmt: skip
def test_ctrl_c_ends_a_start(how, step):
    done = run(2, how, warn=0, abort=0)
    assert done.returncode != 0
    assert f"easyddl: rank 0 on host {HOST} was interrupted {step}" in done.stdout, done.stdout


@pytest.mark.gate
def test_settings_that_are_wrong_on_one_rank_are_an_error_on_all():
    done = run(3, "settings_of_one_rank", abort=30)
    assert done.returncode == 0 and done.stdout.count("has started") == 3, done.stdout


def test_shared_memory_that_one_rank_cannot_make_is_an_error_on_all():
    done = run(3, "memory_of_one_rank", abort=30)
    assert done.stdout.count("told Error: Rank 0 on host") == 3, done.stdout
    assert done.returncode != 0
    assert "failed before easyddl had started: Error: Rank 0 on host" in done.stdout
    assert "died" not in done.stdout


def test_each_rank_reserves_its_own_pages():
    done = run(3, "pages", {"LD_PRELOAD": str(system_faults())}, abort=30)
    assert done.returncode == 0 and done.stdout.count("has started") == 3, done.stdout


def test_a_machine_whose_ranks_cannot_open_each_others_memory_says_so():
    done = run(3, "memory_cannot_be_opened", {"LD_PRELOAD": str(system_faults())}, abort=30)
    assert_tells_that_memory_is_not_shared(done)


def test_one_host_of_several_whose_ranks_cannot_open_each_others_memory():
    env = {"LD_PRELOAD": str(system_faults()), "EASYDDL_HOSTS": "a,a,b"}
    done = run(3, "memory_of_one_host_cannot_be_opened", env, abort=30)
    assert done.returncode == 0 and done.stdout.count("has started") == 3, done.stdout
    assert done.stdout.count("not all of them can open each other's memory") == 1, done.stdout
    env["EASYDDL_HOST_ORDER"] = "1,0"  # a plan has the hosts as they are named
    done = run(3, "memory_of_one_host_cannot_be_opened", env, abort=30)
    assert "3 host(s). Ranks that cannot open each other's memory count as hosts" in done.stdout


@pytest.mark.gate
def test_containers_with_process_ids_of_their_own():
    alone = ("unshare", "--pid", "--fork", "--kill-child")
    if shutil.which("unshare") is None or subprocess.run([*alone, "true"]).returncode != 0:
        pytest.skip("unshare --pid is not to be had here")
    # MPIs believe that they can reach the memory of each process of their host.
    env = {
        "MPIR_CVAR_CH4_CMA_ENABLE": "0",
        "UCX_TLS": "tcp,self",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_btl": "self,tcp",
    }
    done = run(2, "on_one_machine", env, prefix=alone, abort=30)
    assert_tells_that_memory_is_not_shared(done)


def assert_tells_that_memory_is_not_shared(done):
    ranks = done.stdout.count("has started")
    assert done.returncode == 0 and ranks > 1, done.stdout
    said = f"easyddl: warning: the {ranks} ranks on host {HOST} run on one machine, but not all"
    assert done.stdout.count(said) == 1, done.stdout


def test_the_first_use_in_several_threads_and_a_fork_meanwhile():
    done = run(2, "threads", abort=30)
    assert done.returncode == 0 and done.stdout.count("has started") == 2, done.stdout


def test_a_job_inside_of_a_rank_of_a_job_of_the_same_size():
    done = run(2, "nested", warn=20, abort=40)
    assert done.returncode == 0, done.stdout
    said = sorted(re.findall(r"rank \d of 2 inside of (?:\d|None)", done.stdout))
    want = [f"rank {rank} of 2 inside of {outer}" for rank in (0, 1) for outer in (0, 1, None)]
    assert said == sorted(want), done.stdout
