"""`easyddl run` on this host: what ranks get, how jobs end, and what is told of it."""

import hashlib
import json
import os
import pathlib
import random
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
import venv

import leftovers
import mpi
import own_mpirun
import pytest
import run_job

import easyddl
from easyddl.machine import process_tree
from easyddl.runtime import mpi_abi

pytestmark = pytest.mark.mpirun

JOB = run_job.__file__
TIMEOUT = 120
LINES = 50000  # several megabytes, more than all buffers hold
TRICKY = ["a b", "", "$HOME", ";", ":", "'", '"', "*", "\\", "--np", "-H", "ü", "two\nlines", "&&"]


def line(*arguments):
    return [sys.executable, "-m", "easyddl", "run", *map(str, arguments)]


def easyddl_run(*arguments, env=None, timeout=TIMEOUT, cwd=None):
    return mpi.run_command(line(*arguments), mpi.environment(env), timeout, cwd)


def job(*arguments):
    return ["--", sys.executable, JOB, *arguments]


def start(*arguments, env=None, stdout=subprocess.PIPE):
    """Starts a job whose output is read while it runs."""
    return subprocess.Popen(
        line(*arguments),
        env=mpi.environment(env),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def read_until(process, pattern, seconds=60):
    """What a job prints until a pattern occurs."""
    seen, limit = b"", time.monotonic() + seconds
    while not re.search(pattern, seen):
        ready = select.select([process.stdout], [], [], max(0, limit - time.monotonic()))[0]
        data = os.read(process.stdout.fileno(), 4096) if ready else b""
        assert data, f"no {pattern!r} in {seen.decode()!r}"
        seen += data
    return seen


def finish(process, seconds=60):
    """The rest of a job's output, and its exit status."""
    try:
        rest, _ = process.communicate(timeout=seconds)
    finally:
        mpi.stop_session(process)
    return (rest or b"").decode(), process.returncode


def pids_in(output):
    return [int(pid) for pid in re.findall(rb"pid (\d+)", output)]


def parent_of(pid):
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def facts(output):
    told = [json.loads(text) for text in re.findall(r"^(?:\[ *\d+\] )?(\{.*\})$", output, re.M)]
    return {one["rank"]: one for one in told}


@pytest.mark.gate
def test_what_ranks_get(tmp_path):
    done = easyddl_run(
        *("-np", 3, "--env", "EASYDDL_TEST_A=x y", "--env", "EASYDDL_TEST_B"),
        *("--racks", "x", "--timeline", "traces", *job("tell", *TRICKY)),
        env={"EASYDDL_TEST_B": "of this process", "EASYDDL_TEST_C": "forwarded", "PMI_RANK": "7"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    ranks = facts(done.stdout)
    assert sorted(ranks) == [0, 1, 2]
    for rank, one in ranks.items():
        assert f"[{rank}] {{" in done.stdout
        assert one["arguments"] == TRICKY
        assert one["directory"] == str(tmp_path)
        environment = one["environment"]
        assert environment["EASYDDL_TEST_A"] == "x y"
        assert environment["EASYDDL_TEST_B"] == "of this process"
        assert environment["EASYDDL_TEST_C"] == "forwarded"
        assert environment["EASYDDL_RACKS"] == "x"
        assert environment["EASYDDL_TIMELINE"] == str(tmp_path / "traces")
        assert "EASYDDL_LAUNCH" not in environment  # it holds the job's secret


def test_a_job_that_a_rank_starts(tmp_path):
    inner = (sys.executable, "-m", "easyddl", "run", "-np", 1, "--no-prefix", *job("tell"))
    done = easyddl_run("-np", 1, "--racks", "x", "--timeline", "traces", *inner, cwd=tmp_path)
    names = facts(done.stdout)[0]["environment"].keys()
    assert not {"EASYDDL_RACKS", "EASYDDL_TIMELINE"} & names, done.stdout


def test_files_named_like_modules_of_python_are_of_the_script_alone(tmp_path):
    # An environment without files `.pth`, of which some import modules before `python -m` does.
    venv.create(tmp_path / "venv", symlinks=True)
    (tmp_path / "venv/easyddl").write_text("import easyddl.cli as a, sys; sys.exit(a.main())\n")
    command = [tmp_path / "venv/bin/python", tmp_path / "venv/easyddl", "run", "-np", "2"]
    folders = [pathlib.Path(module.__file__).parents[1] for module in (easyddl, pytest)]
    env = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    env["PATH"] = f"{pathlib.Path(mpi.mpirun()).parent}:{os.environ['PATH']}"
    of_runpy = ("functools", "types", "warnings") if sys.version_info >= (3, 11) else ()
    for name in ("platform", "random", "secrets", "signal", *of_runpy):
        (tmp_path / f"{name}.py").write_text("token_bytes = 'of the script'\n")
    script = "import random, secrets, signal; print(secrets.token_bytes)"
    program = ["--quiet", sys.executable, "-c", script]
    done = mpi.run_command([*command, *program], mpi.environment(env), TIMEOUT, tmp_path)
    assert done.returncode == 0, done.stdout
    assert sorted(done.stdout.splitlines()) == ["[0] of the script", "[1] of the script"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_ranks_have_cores_of_their_own():
    done = easyddl_run("-np", 2, *job("tell"))
    first, second = (set(one["cpus"]) for one in facts(done.stdout).values())
    assert first and second and not first & second
    assert first | second <= os.sched_getaffinity(0)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_ranks_on_some_cpus():
    cpu = max(os.sched_getaffinity(0))
    done = easyddl_run("-np", 2, "--cpus", cpu, *job("tell"))
    assert f"easyddl: 2 ranks on the CPU {cpu} of this host: " in done.stdout, done.stdout
    assert [one["cpus"] for one in facts(done.stdout).values()] == [[cpu], [cpu]]


def test_what_is_run_is_told(tmp_path):
    done = easyddl_run("-np", 2, *job("tell", "a b"))
    first, second = done.stdout.splitlines()[:2]
    assert first.startswith("easyddl: 2 ranks on this host: ") and first.endswith("'a b'")
    assert second.startswith(f"easyddl: {mpi.mpirun()} ") and "-np 2" in second
    verbose = easyddl_run("-np", 1, "--verbose", "--env", "A=b c", *job("tell")).stdout
    assert " A='b c' " in verbose
    assert "rank 0 runs on the CPUs" in verbose


def test_default_number_of_ranks():
    done = easyddl_run("--dry-run", "python", "train.py", env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stdout
    cores = len(os.sched_getaffinity(0))
    found = int(re.search(r"easyddl: (\d+) ranks? on this host: python train.py", done.stdout)[1])
    assert 1 <= found <= cores


def test_rank_0_prints_the_topology():
    env = {"EASYDDL_VERBOSE": "1"}
    done = easyddl_run("-np", 2, "--no-prefix", "--racks", "x", *job("start_easyddl"), env=env)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("p:") == 1, done.stdout
    assert os.uname().nodename in done.stdout
    assert "rank 0" in done.stdout and "rank 1" in done.stdout


PLAN = 'format = 1\nhosts = ["h1", "h2"]\norder = ["r1"]\n\n[[groups]]\nname = "r1"\n'


@pytest.mark.parametrize(
    ("options", "env", "problem"),
    [
        ("--plan plan.toml", {}, "`--plan`: plan.toml does not know the hosts h3 of this job"),
        ("", {"EASYDDL_PLAN": "plan.toml"}, "`EASYDDL_PLAN`: plan.toml does not know the hosts h3"),
        ("--plan bad.toml", {}, "`--plan bad.toml, line 7`: members names r1 twice"),
        ("--plan none.toml", {}, "`--plan`: none.toml cannot be read: No such file or directory"),
        ("--plan plan.toml", {"EASYDDL_RACKS": "x,y,x"}, "Set only one of them. Received: "),
        ("--racks x,y,x", {"EASYDDL_PLAN": "plan.toml"}, "`EASYDDL_PLAN` and EASYDDL_RACKS (opt"),
        ("--racks x,y,x --plan plan.toml", {}, "--plan: not allowed with argument --racks"),
    ],
)
def test_a_wrong_plan_starts_nothing(options, env, problem, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN + 'members = ["h1", "h2"]\n')
    (tmp_path / "bad.toml").write_text(PLAN + 'members = ["h1", "r1", "h2", "r1"]\n')
    hosts = ["-H", "h1:1,h2:1,h3:1"]
    done = easyddl_run(*hosts, *options.split(), *job("tell"), env=env, cwd=tmp_path)
    assert done.returncode == 2 and problem in done.stdout, done.stdout
    assert "mpirun" not in done.stdout


def test_startup_lines_come_from_rank_0_alone():
    done = easyddl_run("-np", 2, *job("print_startup_lines"))
    assert done.stdout.count("absl::InitializeLog") == 1, done.stdout
    assert done.stdout.count("oneDNN custom") == 1
    assert "[0] I0000" in done.stdout
    assert done.stdout.count("a warning") == 2
    assert "[0] own line 0" in done.stdout and "[1] own line 1" in done.stdout


@pytest.mark.gate
def test_a_file_for_each_rank(tmp_path):
    done = easyddl_run(
        "-np", 2, "--quiet", "--output", "logs/here", *job("talk", LINES), cwd=tmp_path
    )
    assert done.returncode == 0 and done.stdout == "", done.stdout
    for rank in (0, 1):
        lines = (tmp_path / "logs" / "here" / f"{rank}.log").read_text().splitlines()
        assert lines == [f"{rank} {i} {'x' * 80}" for i in range(LINES)]


@pytest.mark.gate
def test_much_output_is_complete():
    # Slowly read: the end of a rank must not be noticed before all that it wrote.
    slow = "import sys, time; time.sleep(3); sys.stdout.write(sys.stdin.read())"
    shell = ["bash", "-o", "pipefail", "-c", f'"$@" | {sys.executable} -c "{slow}"', "bash"]
    done = mpi.run_command(
        [*shell, *line("-np", 2, *job("talk", LINES))], mpi.environment(), TIMEOUT
    )
    assert done.returncode == 0, done.stdout[-1000:]
    for rank in (0, 1):
        lines = [text for text in done.stdout.splitlines() if text.startswith(f"[{rank}] ")]
        assert lines == [f"[{rank}] {rank} {i} {'x' * 80}" for i in range(LINES)]


def test_any_output_is_passed_on(tmp_path):
    """100 MB without a newline, binary data, and single bytes come through unchanged."""
    arguments = job("write_everything")[1:]
    expected = subprocess.run(arguments, stdout=subprocess.PIPE, env=mpi.environment(), check=True)
    passed_on = tmp_path / "output"
    with passed_on.open("wb") as output:
        process = start("-np", 1, "--quiet", "--no-prefix", "--", *arguments, stdout=output)
        _, status = finish(process, TIMEOUT)
    assert status == 0
    assert passed_on.read_bytes() == expected.stdout
    done = easyddl_run("-np", 2, "--quiet", "--output", tmp_path, "--", *arguments)
    assert done.returncode == 0, done.stdout
    for rank in (0, 1):
        assert (tmp_path / f"{rank}.log").read_bytes() == expected.stdout


def test_output_is_not_written_through_a_link(tmp_path):
    """Another user may have put it there, in a folder that all may write."""
    (tmp_path / "1.log").symlink_to(tmp_path / "other")
    done = easyddl_run("-np", 2, "--output", tmp_path, *job("tell"))
    assert done.returncode != 0
    assert f"{tmp_path}/1.log: " in done.stdout and "symbolic link" in done.stdout, done.stdout
    assert not (tmp_path / "other").exists()


def test_output_replaces_that_of_an_earlier_job(tmp_path):
    for text in ("of the first job, which is longer", "second"):
        done = easyddl_run("-np", 1, "--output", tmp_path, "--", "echo", text)
        assert done.returncode == 0, done.stdout
        assert (tmp_path / "0.log").read_text() == f"{text}\n"


def test_output_through_a_pipe_that_does_not_block():
    # MPICH's mpirun sometimes makes its standard output so, which is also that of easyddl run.
    reading, writing = os.pipe()
    process = start("-np", 2, *job("talk", LINES), stdout=writing)
    text = b""
    while b"xxx\n" not in text:
        text += os.read(reading, 4096)
    os.set_blocking(writing, False)
    os.close(writing)
    time.sleep(1)  # the pipe is full
    with open(reading, "rb") as output:
        text += output.read()
    assert finish(process)[1] == 0, text[-1000:].decode()
    assert sum(line.endswith(b"x" * 80) for line in text.splitlines()) == 2 * LINES


@pytest.mark.parametrize("size", [0, 6, pytest.param(300_000, marks=pytest.mark.gate), 50_000_000])
@pytest.mark.parametrize("through", ["< input", "cat input |"])
def test_standard_input_is_that_of_rank_0(size, through, tmp_path):
    data = random.Random(size).randbytes(size)
    (tmp_path / "input").write_bytes(data)
    before, after = (through, "") if through.endswith("|") else ("", through)
    shell = ["sh", "-c", f'{before} "$@" {after}', "sh", *line("-np", 2, *job("digest"))]
    done = mpi.run_command(shell, mpi.environment(), TIMEOUT, tmp_path)
    assert done.returncode == 0, done.stdout
    for rank, read in enumerate((data, b"")):
        assert (
            f"[{rank}] read {len(read)} bytes {hashlib.sha256(read).hexdigest()}\n" in done.stdout
        )


def test_the_rest_of_a_file_is_standard_input(tmp_path):
    (tmp_path / "input").write_text("first\nsecond\n")
    shell = ["sh", "-c", '(read line; "$@") < input', "sh", *line("-np", 1, *job("read"))]
    done = mpi.run_command(shell, mpi.environment(), TIMEOUT, tmp_path)
    assert "[0] read 'second\\n'\n" in done.stdout, done.stdout


def test_standard_input_comes_as_it_is_written():
    process = subprocess.Popen(
        line("-np", 2, *job("echo")),
        env=mpi.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    read_until(process, rb"\[0\] ready\n")
    for word in (b"one", b"two"):
        process.stdin.write(word + b"\n")
        process.stdin.flush()
        read_until(process, rb"\[0\] got " + word)
    rest, status = finish(process)
    assert status == 0 and "[0] end of input" in rest, rest


def test_standard_input_that_nobody_reads():
    shell = ["sh", "-c", 'yes | "$@"', "sh", *line("-np", 2, *job("ignore_input"))]
    done = mpi.run_command(shell, mpi.environment(), TIMEOUT)
    assert done.returncode == 0, done.stdout
    assert "[0] not read\n" in done.stdout and "[1] not read\n" in done.stdout


def test_a_closed_standard_input():
    shell = ["sh", "-c", '"$@" <&-', "sh", *line("-np", 2, *job("read"))]
    done = mpi.run_command(shell, mpi.environment(), TIMEOUT)
    assert done.returncode == 0 and done.stdout.count("read ''") == 2, done.stdout


def test_a_closed_standard_output():
    command = shlex.join(line("-np", 1, "--quiet", sys.executable, "-c", "print(1)"))
    done = mpi.run_command(["sh", "-c", f"{command} >&-"], mpi.environment(), TIMEOUT)
    assert (done.returncode, done.stdout) == (0, "")


def test_an_unfinished_line_is_shown():
    process = start("-np", 1, *job("ask"))
    try:
        read_until(process, rb"\[0\] question\? ")
    finally:
        process.terminate()
        finish(process)


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("status", 3, "failed first, with exit status 3"),
        pytest.param("raise", 1, "failed first, with exit status 1", marks=pytest.mark.gate),
        pytest.param("SIGKILL", 137, "it was killed by SIGKILL", marks=pytest.mark.gate),
        ("SIGSEGV", 139, "it was killed by SIGSEGV"),
    ],
)
def test_the_first_rank_that_fails_is_named_last(how, status, words):
    done = easyddl_run("-np", 3, *job("fail", how))
    assert done.returncode == status, done.stdout
    verdict = done.stdout.rpartition("easyddl: ")[2]
    assert verdict.startswith(f"rank 1 on host {os.uname().nodename} "), done.stdout
    assert words in verdict
    # What the screen has shown of an error is not repeated.
    last = "ValueError: a mistake" if how == "raise" else "the last line of rank 1"
    assert f"    {last}\n" in verdict
    assert "[1] the last line of rank 1\n" in done.stdout


def in_small_shared_memory(mebibytes, *command):
    inside = f'mount -t tmpfs -o size={mebibytes}m none /dev/shm && "$@"'
    inside += "; status=$?; ls /dev/shm; exit $status"
    alone = ["unshare", "--mount", "/bin/sh", "-c", inside, "sh"]
    if subprocess.run([*alone, "true"]).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    return mpi.run_command([*alone, *map(str, command)], mpi.environment(), TIMEOUT)


@pytest.mark.skipif(mpi.is_open_mpi(), reason="about the shared memory of MPICH")
def test_a_crash_in_a_small_shared_memory_is_explained():
    done = in_small_shared_memory(2, *line("-np", 4, *job("abort_in_world")))
    assert done.returncode in (128 + signal.SIGBUS, 128 + signal.SIGSEGV), done.stdout
    shortage = "(/dev/shm has 2 MiB free, but 4 ranks of MPICH need 31.2 MiB: start"
    assert shortage in done.stdout and "mpich_shm" not in done.stdout, done.stdout


@pytest.mark.skipif(mpi.is_open_mpi(), reason="about the shared memory of MPICH")
@pytest.mark.parametrize(("ranks", "said"), [
    (10, "limits    shared memory, open files and locked memory suffice"),
    (16, "/dev/shm has 64 MiB free, but 16 ranks of MPICH need 93.6 MiB"),
])  # fmt: skip
def test_doctor_counts_the_ranks_for_the_shared_memory_of_a_container(ranks, said):
    doctor = [sys.executable, "-m", "easyddl", "doctor", "-H", f"localhost:{ranks}"]
    done = in_small_shared_memory(64, *doctor)
    assert done.returncode == 0 and said in done.stdout, done.stdout


def test_mpi_abort_is_named():
    done = easyddl_run("-np", 3, *job("abort_in_world"))
    assert done.returncode == 7, done.stdout
    assert "easyddl: rank 1 on host" in done.stdout and "exit status 7" in done.stdout
    assert "    the last line of rank 1\n" in done.stdout


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.full), "after"])
def test_a_rank_that_leaves_with_status_0_is_named(when):
    done = easyddl_run("-np", 2, *job("leave", when))
    assert done.returncode == 1, done.stdout
    told = done.stdout.rpartition("\neasyddl: ")[2]
    assert re.match(r"rank 1 on host \S+ failed first: it ended with status 0 ", told), done.stdout


@pytest.mark.full
def test_a_start_that_takes_too_long_does_not_look_like_a_preemption():
    done = easyddl_run("-np", 2, *job("leave", "late"), env={"EASYDDL_STALL_ABORT": "1"})
    assert done.returncode == 1 and "EASYDDL_STALL_ABORT is 1 s" in done.stdout, done.stdout


@pytest.mark.parametrize("when", ["fail_by_easyddl", "fail_before_start"])
def test_an_error_that_easyddl_reports_is_named(when):
    done = easyddl_run("-np", 3, *job(when))
    assert done.returncode == 1, done.stdout
    assert "failed first, with exit status 1" in done.stdout
    assert "    ValueError: a mistake" in done.stdout.rpartition("failed first")[2]


def told_of(text):
    """The lines of an error's message, as the verdict has them."""
    return "".join(f"    {line}".rstrip() + "\n" for line in f"ValueError: {text}".splitlines())


def tracebacks(output):
    """The lines that Python prints of errors, by rank."""
    lines = re.findall(r"^\[(\d)\] (.*(?:Traceback|File \"|Error: ).*)$", output, re.M)
    return {rank: [text for other, text in lines if other == rank] for rank, _ in lines}


@pytest.mark.parametrize("how", ["fail_alike", "fail_without_easyddl"])
def test_an_error_of_all_ranks_is_shown_once(how):
    done = easyddl_run("-np", 4, *job(how))
    assert done.returncode == 1, done.stdout
    shown = tracebacks(done.stdout)
    assert len(shown) == 1, done.stdout
    verdict = done.stdout.rpartition("easyddl: ")[2]
    first = re.match(r"rank (\d) on host \S+ failed first, with exit status 1\. ", verdict)[1]
    assert list(shown) == [first], done.stdout
    others = re.search(r"The error, also of ranks? ([\d, ]+):\n", verdict)
    if how == "fail_alike":  # otherwise a rank may be ended before it comes to its error
        assert others[1] == ", ".join(sorted(set("0123") - {first})), done.stdout
        assert done.stdout.count("KeyError: 'missing'") == 1, done.stdout
        for rank in "0123":
            assert done.stdout.count(f"[{rank}] own line of rank {rank}\n") == 2, done.stdout
    assert verdict.partition(":\n")[2] == told_of(run_job.SEVERAL_LINES), done.stdout
    assert "MPI_Abort" not in done.stdout and "PMIU" not in done.stdout, done.stdout


@pytest.mark.gate
def test_errors_that_differ_are_all_shown():
    done = easyddl_run("-np", 3, *job("fail_apart"))
    assert done.returncode == 1, done.stdout
    shown = tracebacks(done.stdout)
    assert sorted(shown) == ["0", "1", "2"], done.stdout
    for rank, lines in shown.items():
        assert lines[0] == "Traceback (most recent call last):" and len(lines) >= 3, done.stdout
        assert lines[-1] == f"ValueError: the mistake number {rank}"
    assert "The error:\n" in done.stdout.rpartition("easyddl: ")[2], done.stdout


def test_files_have_the_error_of_each_rank(tmp_path):
    done = easyddl_run("-np", 3, "--output", tmp_path, *job("fail_alike"))
    assert done.returncode == 1, done.stdout
    # The screen has not shown the traceback.
    assert done.stdout.count("    Traceback (most recent call last):\n") == 2, done.stdout
    assert told_of(run_job.SEVERAL_LINES) in done.stdout
    where = rf" Its output is in {tmp_path}/\d\.log on that host\."
    told = rf"{where} The error, also of ranks \d, \d:\n    Traceback"
    assert re.search(told, done.stdout), done.stdout
    for rank in range(3):
        text = (tmp_path / f"{rank}.log").read_text()
        assert f"ValueError: {run_job.SEVERAL_LINES}\n" in text
        assert text.count(f"own line of rank {rank}\n") == 2


def test_errors_that_ranks_catch_are_shown_for_each():
    process = start("-np", 2, *job("catch"))
    seen = read_until(process, rb"(?s)\[0\] which was caught.*\[1\] which was caught|"
                      rb"\[1\] which was caught.*\[0\] which was caught")  # fmt: skip
    process.terminate()
    rest, _ = finish(process)
    output = seen.decode() + rest
    for rank in range(2):
        assert output.count(f"[{rank}] KeyError: 'missing'\n") == 1, output


@pytest.mark.parametrize(
    ("program", "status", "words"),
    [
        ("./nowhere", 127, "./nowhere: No such file or directory"),
        ("/etc/passwd", 126, "/etc/passwd: Permission denied"),
        ("train.py", 127, "train.py: No such file or directory. Did you mean `python train.py`?"),
        (f"{sys.executable} a.py", 127, "Did you mean `{program}` without quotation marks?"),
    ],
)
def test_a_program_that_cannot_be_started(program, status, words):
    words = words.format(program=program)
    done = easyddl_run("-np", 2, program)
    assert done.returncode == status, done.stdout
    last = done.stdout.splitlines()[-1]
    assert words in last and last.endswith((words, f"{words}.")), last
    assert last[-1] in ".?" and last[-2] not in ".?", last


@pytest.mark.parametrize(
    "name", [pytest.param("SIGINT", marks=pytest.mark.gate), "SIGTERM", "SIGHUP"]
)
def test_signals_end_all_ranks(name):
    process = start("-np", 2, *job("sleep_after_start"))
    seen = read_until(process, rb"pid \d+\n[^p]*pid \d+\n")
    process.send_signal(getattr(signal, name))
    rest, status = finish(process)
    assert status == 128 + getattr(signal, name), rest
    last = rest.splitlines()[-1]
    assert f"easyddl: {name} has ended the job" in last and "killed" not in last, rest
    leftovers.assert_gone(pids_in(seen))


def test_a_signal_while_the_ranks_are_told_to_run_ends_them():
    script = (
        "import os, signal, sys; from easyddl import cli; "
        "from easyddl.launch.output import standard_input; "
        "standard_input.is_open = lambda: os.kill(os.getpid(), signal.SIGTERM); "
        "sys.exit(cli.main(['run', '-np', '2', 'sleep', '1000']))"
    )
    done = mpi.run_command([sys.executable, "-c", script], mpi.environment(), TIMEOUT)
    assert done.returncode == 128 + signal.SIGTERM, done.stdout


def test_other_signals_are_passed_on():
    """As a scheduler does that signals each process of a job, before it ends the job."""
    process = start("-np", 2, *job("handle_some"))
    seen = read_until(process, rb"pid \d+\n[^p]*pid \d+\n")
    for number in (signal.SIGXCPU, signal.SIGUSR1, signal.SIGRTMIN + 1):
        for pid in process_tree.descendants(process.pid):
            os.kill(pid, number)
        read_until(process, rb"(handled[^h]*){2}")
    process.send_signal(signal.SIGUSR1)  # later, because equal signals that are pending are one
    read_until(process, rb"(handled[^h]*){2}")
    process.send_signal(signal.SIGUSR2)
    rest, status = finish(process)
    assert status == 128 + signal.SIGUSR2, rest
    assert "failed first: it was killed by SIGUSR2" in rest
    leftovers.assert_gone(pids_in(seen))


def test_mpi_can_end_after_a_signal_to_all_processes():
    """The launcher, which MPI needs for that, outlasts SIGHUP."""
    process = start("-np", 2, *job("end_mpi_at_sighup"))
    read_until(process, rb"pid \d+\n[^p]*pid \d+\n")
    for pid in (process.pid, *process_tree.descendants(process.pid)):
        os.kill(pid, signal.SIGHUP)
    rest, status = finish(process)
    assert status == 128 + signal.SIGHUP and len(rest.splitlines()) == 1, rest


def test_ranks_that_ignore_signals_are_killed():
    process = start("-np", 2, "--grace", 1, *job("ignore_signals"))
    seen = read_until(process, rb"pid \d+\n[^p]*pid \d+\n")
    process.send_signal(signal.SIGTERM)
    rest, status = finish(process)
    assert status == 128 + signal.SIGTERM
    assert "Ranks 0, 1 were killed before their processes had ended: `--grace` is 1 s." in rest
    leftovers.assert_gone(pids_in(seen))


def test_a_signal_that_is_sent_twice_at_once_is_one_request():
    """As a scheduler does that signals each process of a job and their group."""
    process = start("-np", 2, *job("end_slowly"))
    read_until(process, rb"pid \d+\n[^p]*pid \d+\n")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    rest, status = finish(process)
    assert status == 128 + signal.SIGTERM and rest.count("saved") == 2, rest


RANK = shlex.join(map(str, job("end_slowly")[1:]))
END = "import signal as s, sys; [s.signal(n, lambda *_: sys.exit()) for n in (2, 15)]; s.pause()"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("shell", "text"),
    [
        ([], f"{RANK}\nexit $?\n"),  # without a line `#!`
        (["bash"], f"trap true EXIT\n{RANK}\n"),
        (["bash"], f"{shlex.join([sys.executable, '-c', END])} &\n{RANK}\n"),
    ],
    ids=["plain", "trap", "helper"],
)
def test_a_signal_reaches_the_rank_in_a_shell_script(shell, text, number, tmp_path):
    script = tmp_path / "rank.sh"
    script.write_text(text)
    script.chmod(0o755)
    process = start("-np", 2, *shell, script)
    read_until(process, rb"pid \d+\n[^p]*pid \d+\n")
    process.send_signal(number)
    rest, status = finish(process)
    assert status == 128 + number and rest.count("saved") == 2, rest


def test_a_second_ctrl_c_kills_at_once():
    process = start("-np", 2, "--grace", 600, *job("ignore_signals"))
    seen = read_until(process, rb"pid \d+\n[^p]*pid \d+\n")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    rest, status = finish(process)
    assert status == 128 + signal.SIGINT
    assert rest.splitlines()[-1] == (
        "easyddl: SIGINT has ended the job on all hosts. Ranks 0, 1 were killed before their "
        "processes had ended: a second SIGINT came."
    )
    leftovers.assert_gone(pids_in(seen))


@pytest.mark.skipif(mpi.is_open_mpi(), reason="its ranks' own failure comes first")
def test_a_launcher_that_is_killed_is_told():
    process = start("-np", 2, "--quiet", *job("sleep"))
    seen = read_until(process, rb"pid \d+\n[^p]*pid \d+\n")
    children = f"/proc/{process.pid}/task/{process.pid}/children"
    os.kill(int(pathlib.Path(children).read_text().split()[0]), signal.SIGKILL)
    rest, status = finish(process)
    assert status > 128
    assert "no rank reported a failure of its own, but the mpirun of " in rest, rest
    assert " was killed by SIGKILL. " in rest
    assert "messages are above" not in rest
    leftovers.assert_gone(pids_in(seen))


@pytest.mark.parametrize("together", [False, True])
def test_a_reader_that_ends_ends_the_job_quietly(together):
    """As `head -1` does."""
    process = subprocess.Popen(
        line("-np", 2, "--quiet", *job("talk", LINES)),
        env=mpi.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if together else subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout.readline().endswith(b"x\n")
        process.stdout.close()
        if not together:
            assert process.stderr.read() == b""
        assert process.wait(60) == 128 + signal.SIGPIPE
    finally:
        mpi.stop_session(process)
        if not together:
            process.stderr.close()


@pytest.mark.parametrize("arguments", [["info"], ["doctor"], ["bench", "--sizes", "4"]])
def test_a_command_without_a_reader_ends_quietly(arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = run_into(writer, arguments)
    assert done.returncode == 128 + signal.SIGPIPE, done.stderr
    assert "Error" not in done.stderr and "Broken pipe" not in done.stderr, done.stderr


def run_into(output, arguments):
    """Runs a command whose standard output is a file that `open` takes."""
    with open(output, "wb") as stream:
        return subprocess.run(
            [sys.executable, "-m", "easyddl", *arguments],
            env=mpi.environment(mpi.ANY_BACKEND),
            stdout=stream,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT,
        )


@pytest.mark.parametrize("arguments", [["info"], ["--version"]])
def test_a_command_that_cannot_print_says_so(arguments, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    done = run_into("/dev/full", arguments)
    assert done.returncode == 1
    assert done.stderr == "easyddl: [Errno 28] No space left on device\n"


def test_nothing_outlives_easyddl_run():
    process = start("-np", 2, *job("ignore_signals"))
    seen = read_until(process, rb"pid \d+\n[^p]*pid \d+\n")
    process.kill()
    process.wait(10)
    leftovers.assert_gone(pids_in(seen))
    process.stdout.close()


def test_a_killed_supervisor_is_told():
    process = start("-np", 2, *job("sleep"))
    seen = read_until(process, rb"\[1\] pid \d+\n") + b""
    rank_1 = int(re.search(rb"\[1\] pid (\d+)", seen)[1])
    os.kill(parent_of(rank_1), signal.SIGKILL)
    rest, status = finish(process)
    assert status == 1
    assert "rank 1 on host" in rest and "was lost" in rest.splitlines()[-1], rest
    leftovers.assert_gone([rank_1])


@pytest.mark.skipif(mpi.is_open_mpi(), reason="about files of MPICH")
@pytest.mark.parametrize("how", ["status", "abort", "SIGKILL", "easyddl run is killed"])
def test_no_file_of_mpi_is_left(how):
    process = start("-np", 3, *job("use_files_of_mpi"))
    try:
        seen = read_until(process, rb"(?s)(files .*){3}")
        paths = {path for found in re.findall(rb"files (.*)", seen) for path in found.split()}
        names = {path.decode().rpartition("/")[2].rpartition("_")[0] for path in paths}
        assert names == {name for name in names if name.startswith(("mpich_shm", "hydra_hwloc"))}
        assert len(paths) == 2 and all(map(os.path.exists, paths)), seen
        if how == "easyddl run is killed":
            process.kill()
        else:
            os.kill(pids_in(seen)[1], MPI_FAILURES[how])
    finally:
        rest, status = finish(process)
    assert status not in (0, None), rest
    limit = time.monotonic() + 20
    while any(map(os.path.exists, paths)):
        assert time.monotonic() < limit, paths
        time.sleep(0.05)


@pytest.mark.skipif(mpi.is_open_mpi(), reason="about files of MPICH")
def test_no_file_of_mpi_is_left_if_all_ranks_are_killed():
    """No rank is left then that has mapped the files when a supervisor learns of the end."""
    process = start("-np", 1, *job("use_files_of_mpi"))
    try:
        seen = read_until(process, rb"files .*\n")
        paths = re.search(rb"files (.*)", seen)[1].split()
        time.sleep(1)  # the supervisor looks at the files now and then
        os.kill(pids_in(seen)[0], signal.SIGKILL)
    finally:
        rest, status = finish(process)
    assert status == 128 + signal.SIGKILL and len(paths) == 2, rest
    assert not any(map(os.path.exists, paths)), paths


# What makes a rank of `use_files_of_mpi` fail.
MPI_FAILURES = {"status": signal.SIGUSR1, "abort": signal.SIGUSR2, "SIGKILL": signal.SIGKILL}


def test_a_killed_process_of_the_launcher_is_told():
    process = start("-np", 2, *job("sleep"))
    seen = read_until(process, rb"pid \d+\n[^p]*pid \d+\n")
    # The ranks' programs are started by supervisors, these by what the launcher has started.
    agent = parent_of(parent_of(parent_of(pids_in(seen)[0])))
    os.kill(agent, signal.SIGKILL)
    rest, status = finish(process)
    assert status == 1, rest
    words = r"easyddl: rank \d on host .* failed: the launcher's process on this host, .*has ended"
    assert re.match(words, rest.splitlines()[-2]), rest
    leftovers.assert_gone(pids_in(seen))


def test_what_a_rank_leaves_behind_is_ended():
    done = easyddl_run("-np", 1, *job("leave_child"), timeout=30)
    assert done.returncode == 0 and "parent ends" in done.stdout
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert f"{JOB} leave_child" not in running.stdout


def test_an_output_file_that_cannot_be_written(tmp_path):
    """As on a full disk: here the files of the job may not be larger than some kilobytes."""
    shell = ["bash", "-c", 'ulimit -f 100; "$@"', "bash"]
    arguments = line("-np", 2, "--output", tmp_path, *job("talk", LINES))
    done = mpi.run_command([*shell, *arguments], mpi.environment(), TIMEOUT)
    assert done.returncode == 1, done.stdout
    told = done.stdout.rpartition("easyddl: ")[2]
    found = re.match(r"rank (\d) on host .* failed: its output file (\S+): File too large", told)
    assert found and found[2] == f"{tmp_path}/{found[1]}.log", done.stdout


def test_an_output_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    done = easyddl_run("-np", 2, "--output", tmp_path / "file", *job("tell"))
    assert done.returncode == 1
    told = f" failed: `--output {tmp_path}/file`: {tmp_path}/file: File exists."
    assert done.stdout.splitlines()[-1].endswith(told), done.stdout


@pytest.mark.gate
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "PROGRAM is missing"),
        (["-np", "0", "x"], "must be a positive integer. Received: '0'"),
        (["-H", "h1:four", "x"], "the slots of host h1 must be a positive integer"),
        (["-H", "h1:2,h1:2", "x"], "names the host h1 2 times"),
        (["-H", "h1,;rm", "x"], "is not a valid host name"),
        (["-H", "h1,h2", "x"], "Add `-np N`"),
        (["-np", "9", "-H", "h1:4,h2:4", "x"], "-H has 8 (h1:4, h2:4)"),
        (["-np", "2", "-H", "h1:1,h2", "x"], "give either all hosts slots or none"),
        (["--hostfile", "/nowhere", "x"], "/nowhere cannot be read: No such file"),
        (["--env", "1A=x", "x"], "`--env` must be NAME=VALUE or NAME"),
        (["--env", "EASYDDL_TEST_UNSET", "x"], "variable that is not set here"),
        (["--nic", "nic0", "x"], "`--nic` must name network interfaces"),
        (["--launcher", "srun", "x"], "srun"),
        (["--cpus", "0;1", "x"], "`--cpus` must be a list of CPU numbers"),
        (["--cpus", "", "x"], "as in `0-3,8`. Received: ''"),
        (["--cpus", "99999", "x"], "which are "),
        (["--cpus", "0", "-H", "h1:2", "x"], "-H has other hosts"),
        (["-np", "2", "python3", "-"], "standard input, which only rank 0 gets"),
        (["-np", "2", "--restarts", "1", "--min-np", "3", "x"], "`--min-np 3` can never be met"),
        (["--grace", "-1", "x"], "must be a number of seconds. Received: '-1'"),
    ],
)
def test_wrong_options(arguments, words):
    # Without Slurm's programs, which this host may have.
    folders = [f for f in os.environ["PATH"].split(":") if not pathlib.Path(f, "srun").exists()]
    done = easyddl_run(*arguments, env={"PATH": ":".join(folders)})
    assert done.returncode == 2, done.stdout
    assert words in done.stdout


RANK = f"{sys.executable} -m easyddl.launch.supervise.rank"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        # Another MPI's mpirun, for each of whose ranks MPI would make a world of one.
        (f"{own_mpirun.VERSION} PMI_SIZE=1 PMI_RANK=0 {RANK}", "rank 0 of 1, instead of one of 2"),
        # One that starts fewer ranks than it was asked to.
        (
            f"{own_mpirun.VERSION} PMI_SIZE=2 PMI_RANK=1 {RANK}",
            "within 3 s (`--start-timeout`): rank 0",
        ),
        # All of them on another host than was asked for.
        (
            f"{own_mpirun.VERSION} export PMI_SIZE=2; for PMI_RANK in 0 1; do export PMI_RANK; "
            f"unshare --uts sh -c 'hostname elsewhere; exec {RANK}' & done; wait",
            None,
        ),
        # One whose process for the ranks ended when Python had not started in them yet.
        (
            f"{own_mpirun.VERSION} export PMI_FD=0 PMI_SIZE=2; for PMI_RANK in 0 1; do "
            f"export PMI_RANK; : | {RANK} & done; sleep 60",
            "failed: the launcher's process on this host has ended.",
        ),
        (f"{own_mpirun.VERSION} sleep 60", "within 3 s (`--start-timeout`): ranks 0, 1 on host"),
        (f"{own_mpirun.VERSION} exit 5", "ended with status 5 before all ranks had reported"),
        (f"{own_mpirun.VERSION} {RANK}", "rank None of None, instead of one of 2"),
        ("echo somebody else", "is of no MPI that easyddl knows"),
        ("exit 1", "is of no MPI that easyddl knows"),
        (
            f"echo '{'HYDRA build' if mpi.is_open_mpi() else 'mpirun (Open MPI) 5.0.8'}'",
            "but this installation of easyddl supports",
        ),
    ],
)
def test_launchers_that_lie(script, words, tmp_path):
    python = own_mpirun.environment(tmp_path, script)
    command = [python, "-m", "easyddl", "run", "-np", "2", "--start-timeout", "3"]
    if "this installation" in str(words) and len(mpi_abi.translations()) > 1:
        pytest.skip("this installation of easyddl supports several MPIs")
    if words is None:
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("needs root, to rename a host")
        command += ["-H", "here:1,there:1"]
        words = "was to run on here (1 rank), there (1 rank), from -H, but it runs on elsewhere (2"
        env = {"PYTHONPATH": mpi.environment()["PYTHONPATH"]}
    else:
        env = None
    done = mpi.run_command([*command, *map(str, job("tell"))], mpi.environment(env), TIMEOUT)
    assert done.returncode != 0
    assert words in done.stdout, done.stdout
    assert '"rank"' not in done.stdout  # the program was not run


def test_a_hostfile_that_mpirun_does_not_read(tmp_path):
    (tmp_path / "hosts").write_text("pod-0 slots=1\npod-1 slots=1\n")
    variable = "PRTE_MCA_prte_default_hostfile"
    if mpi.is_open_mpi():
        variable = "OMPI_MCA_orte_default_hostfile"
    done = mpi.run(2, JOB, "start_easyddl", env={variable: str(tmp_path / "hosts")})
    assert done.returncode != 0
    assert "The 2 ranks run on 1 host" in done.stdout, done.stdout
    assert f"the hostfile of {variable} has 2 hosts for them" in done.stdout
    assert "easyddl has started" not in done.stdout


@pytest.mark.parametrize(
    "line",
    [
        "-m easyddl info",
        "-m easyddl doctor",
        "-m easyddl run --quiet -np 2 -- {python} -m easyddl bench --sizes 4 --rounds 1 "
        "--algorithms easyddl mpi ring",
        "-m easyddl timeline traces",
    ],
)
def test_commands_import_no_framework(line, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os, sys\n"
        "def tell():\n"
        "    names = {'keras', 'tensorflow', 'jax', 'torch'} & sys.modules.keys()\n"
        "    with open(os.environ['EASYDDL_TEST_MODULES'], 'a') as file:\n"
        "        file.write(f'process {sorted(names)}\\n')\n"
        "atexit.register(tell)\n"
    )
    modules = tmp_path / "modules"
    env = mpi.environment(
        {
            "PYTHONPATH": str(tmp_path),
            "EASYDDL_TEST_MODULES": str(modules),
            "EASYDDL_TIMELINE": str(tmp_path / "traces"),
            "KERAS_BACKEND": "tensorflow",
        }
    )
    if "timeline" in line:
        bench = [sys.executable, "-m", "easyddl", "bench", "--sizes", "4", "--rounds", "1"]
        done = mpi.run_command(
            mpi.command(2, [*bench, "--algorithms", "easyddl"]), env, TIMEOUT, tmp_path
        )
        assert done.returncode == 0, done.stdout
    arguments = line.format(python=sys.executable).split()
    done = mpi.run_command([sys.executable, *arguments], env, TIMEOUT, tmp_path)
    assert done.returncode == 0, done.stdout
    told = modules.read_text().splitlines()
    # Including the processes that the command starts.
    assert set(told) == {"process []"}, told
    assert len(told) >= (3 if "bench" in line or "timeline" in line else 1), told


def test_commands_start_without_keras():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "easyddl", "run", "--dry-run", "-np", "2", "x"],
        capture_output=True,
        text=True,
        env=mpi.environment(),
        timeout=TIMEOUT,
        check=True,
    )
    imported = {text.rpartition("|")[2].strip() for text in done.stderr.splitlines()}
    assert "easyddl.launch.start.placement" in imported
    assert not imported & {"keras", "tensorflow", "jax", "torch", "numpy", "mpi4py"}
