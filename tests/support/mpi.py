"""Starts jobs under mpirun, and reads what their checks found.

A test of many ranks is a script of functions named `check_...`, which `run_checks` calls one after
the other on every rank of one job, since importing Keras takes each process seconds.
`matrix.py` says which of them run in which job. MPICH runs all of it. With Open MPI and
with the oldest TensorFlow and Keras, `.ci/run` runs a part: see its stages.
"""

import array
import ast
import contextlib
import dataclasses
import functools
import gc
import importlib
import importlib.util
import json
import os
import pathlib
import pickle
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

TESTS = pathlib.Path(__file__).parents[1]
TIMEOUT = 480  # seconds; a job that takes longer hangs
CHECK_TIMEOUT = 240  # seconds; a check that takes longer hangs

# What Keras and TensorFlow import where it is installed, and easyddl does not.
NOT_NEEDED = ("jax", "matplotlib", "pandas", "sklearn", "torch")

# For jobs whose backend does not matter: that which is imported in the shortest time.
ANY_BACKEND = {"KERAS_BACKEND": "jax"} if importlib.util.find_spec("jax") else {}


def available_bytes():
    """The memory that this machine has free, or could free."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def mpirun():
    """The launcher of the MPI in use: the environment's own before the machine's."""
    beside = pathlib.Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


@functools.cache
def is_open_mpi():
    version = subprocess.run(
        [mpirun(), "--version"], capture_output=True, text=True, check=True
    ).stdout
    return "Open MPI" in version or "OpenRTE" in version or "prte" in version.lower()


def command(ranks, arguments):
    """The command line of a job with more ranks than cores, as any user."""
    flags = []
    if is_open_mpi():
        flags = ["--oversubscribe"]
        if os.geteuid() == 0:
            flags.append("--allow-run-as-root")
    return [mpirun(), *flags, "-np", str(ranks), *map(str, arguments)]


def environment(extra=None, shown=()):
    """The environment of a process that tests start.

    Args:
        extra: Dictionary. What it has besides.
        shown: Names of libraries that it imports and that are hidden otherwise: those that Keras
            or TensorFlow would import where they are installed, which takes seconds.
    """
    extra = extra or {}
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
    support = pathlib.Path(__file__).parent
    own = [str(support), str(support / "lean")]
    path = os.pathsep.join(filter(None, [*own, os.environ.get("PYTHONPATH")]))
    backend = {**os.environ, **extra}.get("KERAS_BACKEND")
    hidden = set(NOT_NEEDED) - {backend, *shown}
    # Without what importing easyddl has left here for this process's own children to see.
    clean = {name: value for name, value in os.environ.items() if name != "_EASYDDL_PROCESS"}
    ours = {"PYTHONPATH": path, "EASYDDL_TEST_HIDDEN": " ".join(sorted(hidden))}
    # JAX compiles for a fifth of a job's time; what it compiles stays the same up to LLVM.
    ours["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    return {**clean, **quiet, **ours, **extra}


def run(
    ranks,
    script,
    *arguments,
    env=None,
    shown=(),
    timeout=TIMEOUT,
    cwd=None,
    ranks_by_mpirun=True,
):
    """Runs a Python script on some ranks.

    Returns:
        `subprocess.CompletedProcess` with standard output and error, mixed, as `stdout`.

    Raises:
        TimeoutError: If it takes too long; the job is killed and what it printed shown.
    """
    env = environment(env, shown)
    line = [sys.executable, str(script), *map(str, arguments)]
    if ranks_by_mpirun:
        line = command(ranks, line)
    return run_command(line, env, timeout, cwd)


def run_command(line, env, timeout=TIMEOUT, cwd=None, progress=None):
    """Runs the command line of a job, as `run` does.

    Args:
        progress: Path of a folder. The time counts from the last change of a file there.
    """
    with tempfile.TemporaryFile("w+") as output:
        # Into a file: a pipe would be kept open by a rank that outlives the launcher.
        process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        late = not _has_ended(process, timeout, progress)
        if late:
            stop_session(process)
        output.seek(0)
        text = output.read()
    if late:
        raise TimeoutError(f"{line} took more than {timeout} s. It printed:\n{text}")
    return subprocess.CompletedProcess(line, process.returncode, text)


def _has_ended(process, timeout, progress):
    """Waits for a process. Returns whether it has ended in time."""
    began = time.time()
    while True:
        try:
            process.wait(max(0, began + timeout - time.time()))
            return True
        except subprocess.TimeoutExpired:
            files = pathlib.Path(progress).iterdir() if progress else ()
            latest = max((path.stat().st_mtime for path in files), default=began)
            if latest <= began:
                return False
            began = latest


def shown(ranks, *arguments, watched, timeout=120):
    """What a job writes, whose launcher's output leads to a terminal.

    Args:
        ranks: Integer.
        *arguments: Of Python: a script, and what it is passed.
        watched: Whether the launcher has that terminal itself, and not a pipe to it.
        timeout: Seconds.
    """
    terminal, end = os.openpty()
    line = command(ranks, [sys.executable, *arguments])
    if not watched:
        line = ["/bin/sh", "-c", '"$@" 2>&1 | cat', "sh", *line]
    job = subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=end,
        stderr=end,
        env=environment(),
        start_new_session=True,
    )
    os.close(end)
    try:
        seen = _read_to_its_end(terminal, timeout)
        assert job.wait(timeout) == 0, seen
    finally:
        stop_session(job)
        os.close(terminal)
    return seen.decode()


def _read_to_its_end(terminal, seconds):
    """What is written to a terminal until all have closed their end, or the time is up."""
    seen, limit = b"", time.monotonic() + seconds
    with contextlib.suppress(OSError):  # it says so that all have closed theirs
        while select.select([terminal], [], [], max(0, limit - time.monotonic()))[0]:
            seen += os.read(terminal, 4096)
    return seen


def stop_session(process):
    """Ends a launcher and all processes of its session."""
    with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(10)
    for pid in session_members(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def session_members(session):
    """The processes whose session is `session`."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.getsid(int(entry.name)) == session:
                found.append(int(entry.name))
        except (ProcessLookupError, PermissionError):
            continue
    return found


def checks_file(name):
    """The path of `NAME_checks.py`, which stands in the folder of its subject."""
    (path,) = TESTS.glob(f"*/{name}_checks.py")
    return path


def import_checks(name):
    """Imports `NAME_checks.py`, and what it imports from its own folder."""
    folder = str(checks_file(name).parent)
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(f"{name}_checks")


def checks_of(script):
    """The names of a script's checks, in their order, without running it."""
    tree = ast.parse(pathlib.Path(script).read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]


@dataclasses.dataclass(frozen=True)
class CheckRun:
    """What a job of checks left.

    Attributes:
        by_rank: List. For each rank a dictionary: what became of each check that it has finished.
        ended: String. How the job ended, and what it printed.
        failed: Whether it did not end well.
    """

    by_rank: list
    ended: str
    failed: bool

    def problem(self, check):
        """What went wrong in a check, on all ranks where it did; empty if nothing has."""
        results = [results.get(check, "did not finish") for results in self.by_rank]
        return "\n".join(f"rank {r}: {text}" for r, text in enumerate(results) if text != "ok")


def check_job(ranks, script, only, variables):
    """Runs some checks of a script in one job.

    Args:
        ranks: Integer.
        script: Path of the script.
        only: Tuple of the checks' names; empty for all of them.
        variables: Dictionary. What the job's environment has besides.

    Returns:
        `CheckRun`.
    """
    with tempfile.TemporaryDirectory() as folder:
        env = environment({**variables, "EASYDDL_TEST_RESULTS": folder})
        line = command(ranks, [sys.executable, script, *only])
        try:
            done = run_command(line, env, CHECK_TIMEOUT, progress=folder)
            ended = f"The job ended with status {done.returncode}. It printed:\n{done.stdout}"
            failed = done.returncode != 0
        except TimeoutError as error:
            ended, failed = str(error), True
        by_rank = []
        for rank in range(ranks):
            path = pathlib.Path(folder, f"{rank}.json")
            by_rank.append(json.loads(path.read_text()) if path.exists() else {})
    return CheckRun(by_rank, ended, failed)


@functools.cache
def _results(ranks, script, only, variables):
    return check_job(ranks, script, only, dict(variables))


def jobs(now, soak="", longest=""):
    """Parametrizes a test by `backend` and `ranks`.

    Backends and numbers of ranks go the same ways in most of easyddl: what one job has tried
    with a backend, another tries with another number. The other pairs have a marker.

    Args:
        now: String. The jobs without a marker of their own, as in `"tensorflow:3 jax:2"`.
        soak: String. Those with the marker `soak`.
        longest: String. Those with the marker `longest`.
    """
    # Not needed by the scripts of the jobs, which import this module too.
    import pytest

    listed = [(job, ()) for job in now.split()]
    listed += [(job, pytest.mark.soak) for job in soak.split()]
    listed += [(job, pytest.mark.longest) for job in longest.split()]
    pairs = [(*job.split(":"), marks) for job, marks in listed]
    return pytest.mark.parametrize(
        ("backend", "ranks"),
        [pytest.param(b, int(n), marks=marks, id=f"{b}-{n}") for b, n, marks in pairs],
    )


def require(backend):
    """Skips a test whose backend is not installed."""
    import pytest

    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")


def assert_check(ranks, script, check, only=(), **env):
    """Runs a script's job, once for all of its checks, and asserts that one passed.

    Args:
        ranks: Integer.
        script: Path of the script.
        check: String. The name of the check.
        only: Tuple of names. The job's checks, if these are not all.
        env: The job's environment.
    """
    require(env.get("KERAS_BACKEND", "keras"))
    run = _results(ranks, str(script), tuple(only), tuple(sorted(env.items())))
    assert not run.problem(check), f"{run.problem(check)}\n{run.ended}"
    last = (only or checks_of(script))[-1]
    assert not (run.failed and check == last), run.ended


def _compile_by_xla():
    """Has `jit_compile="auto"`, Keras's default, mean what it does on a GPU."""
    from keras.src.trainers import trainer

    trainer.Trainer._resolve_auto_jit_compile = lambda model: True


def asleep(request):
    """Waits for one of MPI's requests, and leaves the cores to ranks that compute meanwhile."""
    while not request.Test():
        time.sleep(0.001)


def by_the_root(compute, *arguments, **more):
    """What `compute(...)` returns on the root, on all ranks; the others sleep meanwhile.

    It is for what a check compares with, where that is the same on all ranks.
    """
    from mpi4py import MPI

    comm, length = _of_references(), array.array("q", [0])
    if comm.rank == 0:
        data = bytearray(pickle.dumps(compute(*arguments, **more)))
        length[0] = len(data)
    asleep(comm.Ibcast([length, MPI.INT64_T]))
    if comm.rank != 0:
        data = bytearray(length[0])
    asleep(comm.Ibcast([data, MPI.BYTE]))
    return pickle.loads(data)


@functools.cache
def _of_references():
    """The communicator of `by_the_root`, made where all ranks come to it first."""
    from mpi4py import MPI

    return MPI.COMM_WORLD.Dup()


def destroy_what_is_left():
    """Destroys what a check or a script has left, while it is young.

    The destructor of an iterator of tf.data waits the longer, the older the iterator is (TensorFlow
    2.21), and no other thread of Python runs meanwhile: the other ranks take this one for stopped.
    Later collections skip what stays.
    """
    gc.collect()
    gc.freeze()


def run_checks(namespace):
    """Called at the end of a script of checks: runs them all, on every rank."""
    # The verdict travels by MPI itself, not by what is tested.
    import easyddl

    easyddl.init()
    from mpi4py import MPI

    if os.environ.get("EASYDDL_TEST_JIT_COMPILE"):
        _compile_by_xla()
    folder = os.environ.get("EASYDDL_TEST_RESULTS", tempfile.gettempdir())
    results = {}
    comm = MPI.COMM_WORLD.Dup()
    only = sys.argv[1:]
    for name in only or [name for name in namespace if name.startswith("check_")]:
        began = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                # Keras on NumPy 2: its tensors' __array__ knows no `copy`.
                warnings.filterwarnings("ignore", message=".*__array__.*copy.*")
                # What torch.compile imports of PyTorch's own.
                warnings.filterwarnings(
                    "ignore", message=".*torch.jit.*", category=DeprecationWarning
                )
                # JAX has no 64-bit numbers unless it is told to.
                warnings.filterwarnings("ignore", message="Explicitly requested dtype")
                namespace[name]()
            results[name] = "ok"
        except BaseException:
            results[name] = traceback.format_exc()
            print(f"rank {comm.rank}: {results[name]}", file=sys.stderr, flush=True)
        pathlib.Path(folder, f"{comm.rank}.json").write_text(json.dumps(results))
        if comm.rank == 0:
            print(f"{time.monotonic() - began:6.1f} s  {name}", flush=True)
        if results[name] != "ok":
            # Ranks have parted ways, and others may wait for this one. They get some time to
            # find out for themselves, and to say so.
            time.sleep(3)
            comm.Abort(1)
        destroy_what_is_left()
        asleep(comm.Ibarrier())
