"""How processes end: at any moment, with threads and signals, leaving nothing behind."""

import bdb
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import mpi
import pytest
import run_job

from easyddl.runtime import job_exit

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("exit_job.py")


def run_exit(how, hosts, *arguments, **env):
    ranks = hosts.count(",") + 1
    env = {"EASYDDL_HOSTS": hosts, **env}
    return mpi.run(ranks, SCRIPT, how, *arguments, env=env, timeout=60)


@pytest.mark.parametrize("hosts", ["a,a,a", "a,b,a"])
def test_a_signal_handler_that_calls_a_collective_in_a_wait(hosts):
    done = run_exit("handler_catches", hosts)
    assert done.returncode == 0, done.stdout
    assert (
        "heard Error: A signal handler called a sum in a signal handler while its thread waits in "
        "the sum. A handler must not call collectives. Set a flag" in done.stdout
    ), done.stdout


@pytest.mark.gate
def test_an_error_in_a_signal_handler_ends_the_wait_of_all():
    done = run_exit("handler_does_not_catch", "a,b,a")
    assert done.returncode != 0
    assert "easyddl: rank 0 on host a failed: Error: A signal handler called" in done.stdout


@pytest.mark.parametrize(
    ("how", "hosts"),
    [("daemon_thread", "a,a"), ("daemon_thread", "a,b"), ("daemon_thread_of_one", "a,b")],
)
def test_daemon_threads_in_collectives_do_not_disturb_the_end(how, hosts):
    done = run_exit(how, hosts)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("has ended") == 2, done.stdout


def test_a_debugger_at_the_end_of_standard_input(monkeypatch):
    error = bdb.BdbQuit()
    with open(os.devnull) as empty:
        monkeypatch.setattr(sys, "stdin", empty)
        printed = job_exit._printed_by(sys.__excepthook__, bdb.BdbQuit, error, None)
    assert printed.startswith("bdb.BdbQuit\n`breakpoint()` has met the end of standard input on ")


@pytest.mark.gate
def test_a_collective_after_mpi_has_ended():
    done = run_exit("after_finalize", "a,a")
    assert done.returncode == 0, done.stdout
    refused = "easyddl has ended on this rank, because MPI_Finalize has been called"
    assert done.stdout.count(refused) == 2, done.stdout


@pytest.mark.parametrize("other", [pytest.param("withdrawn", marks=pytest.mark.gate), "differ"])
def test_warnings_at_the_end_are_those_of_all_ranks(other):
    done = run_exit("warnings_at_the_end", "a,b,a", other)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines() == ["later"], done.stdout


def preloadable(folder, name, *compilers):
    """Compiles a library that jobs are to load before all others."""
    path = mpi.environment()["PATH"]
    compiler = next(filter(None, (shutil.which(each, path=path) for each in compilers)), None)
    if compiler is None:
        pytest.skip(f"needs a C compiler: {', '.join(compilers)}")
    library, source = folder / f"{name}.so", SCRIPT.with_name(f"{name}.c")
    command = [compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return str(library)


@pytest.mark.parametrize("how", ["exit", "finalize"])
def test_no_other_thread_calls_mpi_in_its_finalize(how, tmp_path):
    library = preloadable(tmp_path, "watch_finalize", "mpicc")
    done = run_exit("end_one_by_one", "a,b", how, LD_PRELOAD=library)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("has ended") == 2, done.stdout


@pytest.fixture(scope="module")
def refusing(tmp_path_factory):
    """The library that lets the system refuse threads."""
    return preloadable(tmp_path_factory.mktemp("refuse"), "refuse_threads", "cc", "gcc")


# The first is that of the start's deadlines; the second, which notices the end of processes, is
# started by all ranks of a host together.
@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_the_limit_of_threads_is_told(refusing, allowed):
    done = run_exit("no_thread_is_left", "a,a,a", allowed, LD_PRELOAD=refusing)
    assert done.returncode != 0
    assert re.search(r"easyddl could not start the thread that \w+", done.stdout), done.stdout
    assert "`ulimit -u`" in done.stdout


def test_the_limit_of_threads_fails_a_registration_on_all_ranks(refusing):
    done = run_exit("no_thread_for_what_is_registered", "a,b,a", LD_PRELOAD=refusing)
    assert done.returncode == 0, done.stdout
    told = "refused Rank 1 on host"
    assert done.stdout.count(told) == 6, done.stdout
    assert done.stdout.count("mean 2.0") == 3 and done.stdout.count("sum 6.0") == 3, done.stdout


def test_a_registration_that_one_rank_does_not_come_to():
    done = run_exit("registration_is_given_up", "a,b,a")
    assert done.returncode == 0, done.stdout
    heard = r"^heard .*\bRank 0 on host a has ended its script, while rank \d on host"
    assert len(re.findall(heard, done.stdout, re.MULTILINE)) == 4, done.stdout


@pytest.mark.parametrize(
    ("fault", "hosts"),
    [
        ("raise_error", "a,b,a"),
        ("sys_exit", "a,a"),
        pytest.param("kill", "a,a,a", marks=pytest.mark.gate),
    ],
)
def test_no_file_is_left_in_shared_memory(fault, hosts):
    done = run_exit(fault, hosts)
    assert done.returncode != 0
    files = re.search(r"^files (.*)", done.stdout, re.MULTILINE)[1].split()
    if not mpi.is_open_mpi():
        assert files, "MPICH keeps its memory elsewhere now"
    assert not [path for path in files if pathlib.Path(path).exists()]


def run_failing(how):
    """The output and the status of a job of four ranks that all fail, under mpirun itself."""
    done = mpi.run(4, run_job.__file__, how, timeout=60)
    assert done.returncode != 0, done.stdout
    return done.stdout


def test_ranks_with_the_same_error_print_it_once():
    output = run_failing("fail_alike")
    # The error has a cause, with a traceback of its own.
    assert output.count("Traceback (most recent call last):\n") == 2, output
    message = "\n".join(f"    {line}".rstrip() for line in run_job.SEVERAL_LINES.splitlines())
    told = re.search(r"easyddl: rank (\d) on host \S+ failed: ValueError: (.*)\n", output)
    # On a busy host a rank may be late, and its own line may follow.
    after = r"(\Z|own line of rank \d\n|easyddl: )"
    assert re.search(rf"ValueError: {re.escape(message.strip())}\n{after}", output), output
    others = re.findall(r"^easyddl: ranks? ([\d, ]+) failed with the same error$", output, re.M)
    assert len(others) == 1, output
    assert set(others[0].split(", ")) <= set("0123") - {told[1]}, output
    for rank in range(4):
        assert output.count(f"own line of rank {rank}\n") == 2, output


def test_ranks_with_errors_that_differ_print_them_whole():
    output = run_failing("fail_apart")
    for rank in range(4):
        whole = (
            r"Traceback \(most recent call last\):\n(?: .*\n)+"
            rf"ValueError: the mistake number {rank}\neasyddl: rank {rank} on host \S+ failed: "
        )
        assert re.search(whole, output), output
    assert "the same error" not in output


EASYDDL_RUN = [sys.executable, "-m", "easyddl", "run", "-np", "2", "--quiet", "--no-prefix"]
by_each_launcher = pytest.mark.parametrize(
    "launcher", [mpi.command(2, []), EASYDDL_RUN], ids=["mpirun", "easyddl"]
)


def run_two(launcher, first, second):
    words = (shlex.join([sys.executable, "-c", code]) for code in (first, second))
    line = [*launcher, "sh", "-c", " && ".join(words)]
    return mpi.run_command(line, mpi.environment({"KERAS_BACKEND": "jax"}), timeout=60)


# A line in one piece. Of the status, the kernel keeps 0.
USE = 'import easyddl; print(f"{easyddl.rank()}\\n", end=""); raise SystemExit(256)'


@by_each_launcher
def test_a_program_that_only_imports_easyddl_leaves_mpi_to_the_next(launcher):
    done = run_two(launcher, "import keras, easyddl", USE)
    assert done.returncode == 0 and sorted(done.stdout.split()) == ["0", "1"], done.stdout


@by_each_launcher
def test_a_rank_that_only_imports_easyddl_lets_the_others_use_it(launcher):
    code = "import keras, easyddl; from easyddl.hosts import launched_process as launched; "
    code += "launched.rank() or print(easyddl.size())"
    line = [*launcher, sys.executable, "-c", code]
    done = mpi.run_command(line, mpi.environment({"KERAS_BACKEND": "jax"}), timeout=60)
    assert done.returncode == 0 and done.stdout == "2\n", done.stdout


@pytest.mark.skipif(mpi.is_open_mpi(), reason="Open MPI does not tell the second program")
@by_each_launcher
def test_a_second_program_of_a_rank_cannot_use_mpi(launcher):
    done = run_two(launcher, USE, USE)
    assert done.returncode != 0
    assert "RuntimeError: The launcher has closed its connection to this rank" in done.stdout
