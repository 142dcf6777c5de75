"""Functions on many ranks, from a process that is no rank: `easyddl.run` and `easyddl.Ranks`."""

import contextlib
import gc
import io
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time

import leftovers
import mpi
import numpy as np
import pytest

import easyddl as ddl
from easyddl.hosts import launched_process
from easyddl.launch.calls import run_process

pytestmark = pytest.mark.mpirun

LIMIT = 180  # seconds of a call that would otherwise hang
GRACE = 1.0


@pytest.fixture(autouse=True)
def limit():
    """Ends a test that hangs, wherever it does."""

    def give_up(number, frame):
        raise TimeoutError("The test has taken too long.")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(2 * LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def environment():
    """What differs between the environments of this process and of the ranks."""
    whole = mpi.environment(mpi.ANY_BACKEND)
    return {name: value for name, value in whole.items() if os.environ.get(name) != value}


def new_ranks(np=2, **options):
    return ddl.Ranks(np, env=environment(), grace=GRACE, **options)


@pytest.fixture(scope="module")
def shared():
    """Ranks that every test leaves usable."""
    with new_ranks() as ranks:
        yield ranks


@pytest.fixture
def ranks(shared):
    """The shared ranks, which are the same processes after the test."""
    before = shared.run(os.getpid, timeout=LIMIT)
    yield shared
    assert shared.run(os.getpid, timeout=LIMIT) == before


# What each rank contributes is another number, and what comes back is computed here.


def sum_of_squares(factor):
    mine = np.arange(5, dtype="float32") * factor + ddl.rank() ** 2
    return ddl.rank(), ddl.size(), np.asarray(ddl.allreduce(mine, op="sum"))


@pytest.mark.gate
def test_results_come_by_rank(ranks):
    found = ranks.run(sum_of_squares, args=(3,), timeout=LIMIT)
    assert [(rank, size) for rank, size, _ in found] == [(0, 2), (1, 2)]
    expected = 2 * 3 * np.arange(5) + 1
    for _, _, total in found:
        np.testing.assert_array_equal(total, expected)


def select_backend(name):
    assert not {"keras", "jax", "tensorflow", "torch"} & set(sys.modules)
    os.environ["KERAS_BACKEND"] = name
    import keras

    return keras.backend.backend(), keras.Model.fit.__code__.co_filename, os.environ.get("NPROC")


def test_a_function_may_select_the_backend():
    mpi.require("jax")
    env = {**environment(), "KERAS_BACKEND": "tensorflow"}
    with ddl.Ranks(2, env=env) as ranks:
        cores = ranks.run(lambda: (ddl.rank(), len(os.sched_getaffinity(0))), timeout=LIMIT)
        found = ranks.run(select_backend, ("jax",), timeout=LIMIT)
    for (_, mine), (backend, file, threads) in zip(cores, found, strict=True):
        assert backend == "jax" and file.startswith(ddl.__path__[0])
        assert threads is not None and 1 <= int(threads) <= mine


@pytest.mark.gate
def test_arguments_of_any_shape(ranks):
    table = {"x": [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.ones((3, 2)))], 5: (None,)}

    def change(first, *rest, named):
        first["x"][0] += 1  # arrays arrive writable
        return first, rest, named, table["x"][0].sum()  # `table` and `first` are one object

    for first, rest, named, of_closure in ranks.run(
        change, (table, "two", b"three"), {"named": np.array("s")}, timeout=LIMIT
    ):
        np.testing.assert_array_equal(first["x"][0], np.arange(6).reshape(2, 3) + 1)
        np.testing.assert_array_equal(first["x"][1], np.ones((3, 2)))
        assert (first[5], rest, named.item(), of_closure) == ((None,), ("two", b"three"), "s", 21)
    assert table["x"][0].sum() == 15


def test_modules_of_the_users_folder(ranks, tmp_path, monkeypatch):
    (tmp_path / "module_of_mine.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import module_of_mine

    assert ranks.run(module_of_mine.double, (21,), timeout=LIMIT) == [42, 42]
    assert ranks.run(os.getcwd, timeout=LIMIT) == [str(tmp_path)] * 2


def test_what_is_stored_in_a_module_is_kept(ranks):
    def store(value):
        import __main__

        __main__.stored = value + ddl.rank()

    def read():
        import __main__

        return __main__.stored

    ranks.run(store, (10,), timeout=LIMIT)
    assert ranks.run(read, timeout=LIMIT) == [10, 11]


class OwnError(Exception):
    def __init__(self, code, text):  # cannot be restored from its `args`
        super().__init__(text)


@pytest.mark.gate
def test_an_exception_of_one_rank(ranks):
    def fail(x):
        if ddl.rank() == 1:
            raise KeyError(f"no {x}")
        return x

    with pytest.raises(ddl.RankError) as found:
        ranks.run(fail, ("key",), timeout=LIMIT)
    error = found.value
    assert (error.rank, error.host, error.failed) == (1, socket.gethostname(), (1,))
    assert isinstance(error.__cause__, KeyError) and error.__cause__.args == ("no key",)
    assert str(error).startswith(f"Rank 1 on host {error.host}: KeyError: 'no key'")
    assert 'raise KeyError(f"no {x}")' in error.remote_traceback
    assert "worker.py" not in error.remote_traceback
    assert error.remote_traceback.strip() in str(error)


def test_sys_exit_and_errors_that_cannot_be_restored(ranks):
    def fail(own_error):
        sys.exit(3) if ddl.rank() == 0 else own_error()

    def own_error():
        raise OwnError(1, "special")

    words = r"(?s)Rank 0 .*SystemExit: 3.*Also failed:.*rank 1.*OwnError: special"
    with pytest.raises(ddl.RankError, match=words) as found:
        ranks.run(fail, (own_error,), timeout=LIMIT)
    assert (found.value.rank, found.value.failed) == (0, (0, 1))


def test_a_result_that_cannot_be_sent(ranks):
    with pytest.raises(ddl.RankError, match=r"(?i)rank 0 .*of type _thread.lock, cannot be sent"):
        ranks.run(threading.Lock, timeout=LIMIT)


def test_arguments_that_cannot_be_sent(ranks):
    with pytest.raises(TypeError, match="cannot be sent to the ranks"):
        ranks.run(len, (threading.Lock(),))


@pytest.mark.gate
def test_output_by_rank_in_order(ranks, capsys):
    def talk():
        for step in range(50):
            print(f"step {step}")
        print(f"complaint of {ddl.rank()}", file=sys.stderr)
        os.system(f"echo child of {ddl.rank()}")
        print("begun", end="")

    ranks.run(talk, timeout=LIMIT)
    out, err = capsys.readouterr()
    for rank in range(2):
        mine = [line for line in out.splitlines() if line.startswith(f"[{rank}] ")]
        expected = [*(f"step {step}" for step in range(50)), f"child of {rank}", "begun"]
        assert mine == [f"[{rank}] {text}" for text in expected]
    assert sorted(err.splitlines()) == ["[0] complaint of 0", "[1] complaint of 1"]


def write_later(megabytes):
    """Writes from a thread that goes on after the call. The second call waits for it."""
    import __main__

    def write():
        for _ in range(megabytes):
            os.write(1, b"".join(b"%d line %05d\n" % (ddl.rank(), i) for i in range(65536)))

    __main__.writer = threading.Thread(target=write)
    __main__.writer.start()


def wait_for_writer():
    import __main__

    __main__.writer.join()


def test_output_between_calls_is_shown_in_the_next(ranks, capfd):
    ranks.run(write_later, (3,), timeout=LIMIT)
    time.sleep(3)
    capfd.readouterr()
    ranks.run(wait_for_writer, timeout=LIMIT)
    lines = capfd.readouterr().out.splitlines()
    for rank in range(2):
        own = [line for line in lines if line.startswith(f"[{rank}] ")]
        want = [f"[{rank}] {rank} line {i:05}" for i in range(65536)]
        # What had come before the second call began may have been shown already.
        assert own == (want * 3)[len(want) * 3 - len(own) :] and len(own) > 65536


class SlowStream(io.StringIO):
    """A stream that takes 4 MB in a second."""

    def write(self, text):
        time.sleep(len(text) / 4e6)
        return super().write(text)


def write_and_end(how, megabytes):
    """Writes on all ranks, and then rank 1 raises an error or crashes."""
    for _ in range(1000 * megabytes):
        os.write(1, b"%999d\n" % ddl.rank())
    os.write(1, b"last words\n")
    if how == "crash" and ddl.rank() == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "raise" and ddl.rank() == 1:
        raise ValueError("after much output")
    if how == "crash":
        time.sleep(LIMIT)


@pytest.mark.parametrize(
    ("how", "words"), [("raise", "after much output"), ("crash", "killed by SIGSEGV")]
)
def test_no_output_is_lost_before_a_late_caller_has_read_it(how, words, monkeypatch):
    stream = SlowStream()
    monkeypatch.setattr(sys, "stdout", stream)
    named = ("-H", "localhost:2")  # so that the ranks come by an address of the network
    with ddl.Ranks(2, env=environment(), grace=0.5, options=named) as own:
        with pytest.raises(ddl.RankError, match=words) as found:
            own.run(write_and_end, (how, 10), timeout=LIMIT)
        assert "still ran" not in str(found.value) and found.value.rank == 1
        if how == "raise":
            assert len(own.run(os.getpid, timeout=LIMIT)) == 2
    lines = stream.getvalue().splitlines()
    assert "[1] last words" in lines
    assert lines.count(f"[1] {1:999}") == 10_000


def fork_twice():
    """Returns what a grandchild reads from a pipe that its parent has made."""
    report, told = os.pipe()
    if os.fork() == 0:
        pipes = [os.pipe() for _ in range(4)]  # they may get numbers that the fork has freed
        os.write(pipes[0][1], b"0")
        if os.fork() == 0:
            os.write(told, b"".join(b"%d" % (os.fstat(end).st_ino > 0) for p in pipes for end in p))
            os._exit(0)
        os.wait()
        os._exit(0)
    os.close(told)
    os.wait()
    with open(report, "rb") as file:
        return file.read()


def test_a_child_of_a_ranks_child_keeps_its_files(ranks):
    assert ranks.run(fork_twice, timeout=LIMIT) == [b"1" * 8] * 2


def established():
    """The TCP connections of this rank's process and of its supervisor."""
    found = []
    for process in (os.getpid(), int(os.environ[launched_process.SUPERVISOR])):
        text = pathlib.Path(f"/proc/{process}/net/tcp").read_text()
        rows = [line.split() for line in text.splitlines()[1:]]
        inodes = {row[9] for row in rows if row[3] == "01"}
        for descriptor in pathlib.Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(descriptor)
                if target.removeprefix("socket:[").removesuffix("]") in inodes:
                    found.append(target)
    return len(found), len(set(found))


def test_a_rank_has_three_connections(ranks):
    # One for calls, one for messages of its supervisor, and one by which a lost host is noticed.
    assert ranks.run(established, timeout=LIMIT) == [(3, 3)] * 2


def test_a_forked_child_of_the_caller_leaves_the_ranks_alone(ranks):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with pytest.raises(RuntimeError, match="forked"):
                ranks.run(os.getpid)
            ranks.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.gate
def test_arguments_are_checked(ranks):
    with pytest.raises(TypeError, match="`function` must be callable"):
        ranks.run("train")
    with pytest.raises(TypeError, match="`args` must be a tuple"):
        ranks.run(len, "text")
    with pytest.raises(ValueError, match="`timeout` must be a positive number"):
        ranks.run(len, timeout=0)
    with pytest.raises(TypeError, match="`np` must be the number of ranks"):
        ddl.Ranks(True)
    with pytest.raises(ValueError, match="`np` must be at least 1"):
        ddl.run(len, np=0)
    with pytest.raises(ValueError, match="`hosts`"):
        ddl.Ranks(hosts="h1:0")
    with pytest.raises(TypeError, match="`env` must be a dictionary of strings"):
        ddl.Ranks(env={"A": 1})
    with pytest.raises(TypeError, match="`options` must be"):
        ddl.Ranks(options="--tcp")
    with pytest.raises(TypeError, match=r"`cpus` must be an iterable .*Received: cpus='0-1'"):
        ddl.Ranks(cpus="0-1")
    with pytest.raises(ValueError, match="`cpus` must name at least one CPU"):
        ddl.run(len, cpus=[])
    with pytest.raises(ValueError, match="`cpus` must name CPUs that this process may use"):
        ddl.Ranks(cpus=[99999])
    with pytest.raises(ValueError, match=r"`cpus` .* `hosts` has other hosts"):
        ddl.Ranks(cpus=os.sched_getaffinity(0), hosts="h1:2")


def work(job):
    """What one of several jobs side by side computes, and the CPUs that it may use."""
    total = 0
    for step in range(20):
        print(f"job {job} step {step}")
        total += ddl.allreduce(np.float32(job + step + ddl.rank()), op="sum")
    return float(total), os.sched_getaffinity(0)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_two_jobs_side_by_side(capsys):
    cpus = sorted(os.sched_getaffinity(0))
    shares = cpus[:1], cpus[1:2]
    found, ready = {}, threading.Barrier(2, timeout=LIMIT)

    def run(job):
        # The thread that starts the ranks ends before they do.
        with new_ranks(cpus=shares[job]) as ranks:
            ready.wait()
            found[job] = ranks.run(work, (100 * job,), timeout=LIMIT)

    threads = [threading.Thread(target=run, args=[job]) for job in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for job, share in enumerate(shares):
        # 20 steps of two ranks: the job twice, each step twice, and rank 1.
        assert found[job] == [(20 * 200 * job + 2 * 190 + 20, set(share))] * 2
    lines = capsys.readouterr().out.splitlines()
    expected = [
        f"[{rank}] job {job} step {step}"
        for job in (0, 100)
        for rank in range(2)
        for step in range(20)
    ]
    assert sorted(lines) == sorted(expected)


# The ranks of these tests end.


def wait_alone(folder):
    """Rank 0 waits in a collective to which rank 1 does not come."""
    pathlib.Path(folder, str(os.getpid())).touch()
    if ddl.rank() == 1:
        raise ValueError("boom")
    ddl.barrier()


def test_an_exception_does_not_leave_ranks_waiting(tmp_path):
    ranks = new_ranks()
    with pytest.raises(ddl.RankError, match=r"(?s)Rank 1 .*boom.*Rank 0 still ran") as found:
        ranks.run(wait_alone, (tmp_path,), timeout=LIMIT)
    assert isinstance(found.value.__cause__, ValueError)
    leftovers.assert_gone([int(path.name) for path in tmp_path.iterdir()])
    with pytest.raises(RuntimeError, match=r"have ended: RankError: Rank 1 .*boom"):
        ranks.run(os.getpid)
    assert "ended: RankError" in repr(ranks)
    ranks.close()


def sleep(folder):
    pathlib.Path(folder, str(os.getpid())).touch()
    time.sleep(LIMIT)


def when_running(folder, count, act):
    """Calls `act` in a thread, with the ids of the ranks, when all ranks run `sleep`."""
    seen = []

    def watch():
        while len(seen) < count:
            time.sleep(0.02)
            seen[:] = [int(path.name) for path in pathlib.Path(folder).iterdir()]
        act(seen)

    threading.Thread(target=watch, daemon=True).start()
    return seen


def test_an_interrupt_ends_the_ranks(tmp_path):
    def interrupt(pids):
        os.kill(os.getpid(), signal.SIGINT)

    pids = when_running(tmp_path, 2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        ddl.run(sleep, (tmp_path,), env=environment())
    assert len(pids) == 2
    leftovers.assert_gone(pids)


@pytest.mark.gate
def test_a_killed_rank_is_named(tmp_path):
    def kill(pids):
        os.kill(by_rank[1], signal.SIGKILL)

    with new_ranks() as ranks:
        by_rank = ranks.run(os.getpid, timeout=LIMIT)
        when_running(tmp_path, 2, kill)
        with pytest.raises(ddl.RankError, match=r"Rank 1 .*has ended") as found:
            ranks.run(sleep, (tmp_path,))
        assert found.value.rank == 1
        leftovers.assert_gone(by_rank)


def leave():
    ddl.barrier()
    if ddl.rank() == 0:
        os._exit(0)
    ddl.barrier()


def test_a_rank_that_leaves_is_named():
    """Rank 1 notices it in a collective and aborts the job, which is not the cause."""
    with new_ranks() as ranks, pytest.raises(ddl.RankError, match=r"Rank 0 .*has ended"):
        ranks.run(leave, timeout=LIMIT)


CALLER = """
import os, sys, time
import easyddl as ddl

ranks = ddl.Ranks(2)
print("pids", *(worker.pid for worker in ranks._group.ranks), flush=True)
ranks.run(time.sleep, (float(sys.argv[1]),))
assert not {"keras", "tensorflow", "jax", "torch", "mpi4py.MPI"} & set(sys.modules)
"""


def start_caller(seconds):
    """Starts a script whose ranks sleep. Returns its process, and the ids of the ranks."""
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, seconds],
        env=mpi.environment(mpi.ANY_BACKEND),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    word, *pids = caller.stdout.readline().split()
    assert word == "pids"
    return caller, [int(pid) for pid in pids]


def test_the_ranks_end_with_a_killed_caller():
    caller, pids = start_caller("60")
    with caller:
        assert all(map(leftovers.is_running, pids))
        caller.kill()
    leftovers.assert_gone(pids)


def test_ranks_that_are_not_closed_end_with_the_script():
    caller, pids = start_caller("0")
    with caller:
        assert caller.wait(LIMIT) == 0
    leftovers.assert_gone(pids)


def test_ranks_that_are_not_used_any_more_end():
    ranks = new_ranks()
    pids = [worker.pid for worker in ranks._group.ranks]
    assert all(map(leftovers.is_running, pids))
    del ranks
    gc.collect()
    leftovers.assert_gone(pids)


def test_a_timeout_ends_the_ranks(tmp_path):
    ranks = new_ranks()
    with pytest.raises(TimeoutError, match=r"`timeout`.*Ranks 0, 1 still ran"):
        ranks.run(time.sleep, (LIMIT,), timeout=0.5)
    ranks.close()
    ranks.close()
    with pytest.raises(RuntimeError, match=r"have ended: TimeoutError.*easyddl.Ranks\(np=2\)"):
        ranks.run(os.getpid)


def test_ranks_that_do_not_start(monkeypatch):
    def never(*arguments):
        return [sys.executable, "-c", "import time; print('resting', flush=True); time.sleep(60)"]

    def at_once(*arguments):
        return [sys.executable, "-c", "import sys; print('no such host'); sys.exit(7)"]

    monkeypatch.setattr(run_process, "command", never)
    with pytest.raises(RuntimeError, match=r"(?s)2 of 2 ranks .*after 1 seconds.*resting"):
        new_ranks(start_timeout=1)
    monkeypatch.setattr(run_process, "command", at_once)
    with pytest.raises(RuntimeError, match=r"(?s)ended with status 7.*no such host"):
        new_ranks()
