"""The parts of `easyddl run` that need no job: placement, command lines, binding, verdicts."""

import argparse
import signal
import socket

import pytest
from slurm import HETEROGENEOUS

from easyddl import cli
from easyddl.doctor import agent_start as doctor_start
from easyddl.hosts import host_list
from easyddl.hosts.host_list import HostSlots
from easyddl.launch.calls import run_process
from easyddl.launch.output import startup_lines
from easyddl.launch.start import binding, command_line, environment, mpirun, placement
from easyddl.launch.start.request import Request
from easyddl.launch.supervise import verdict
from easyddl.machine import processes

VERSIONS = {
    mpirun.HYDRA: "HYDRA build details:\n    Version:                                 5.0.2\n",
    mpirun.INTEL: "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260101\n",
    mpirun.OPEN_MPI_4: "mpirun (Open MPI) 4.1.4\n\nReport bugs to ...\n",
    mpirun.OPEN_MPI_5: "mpirun (Open MPI) 5.0.11\n\nReport bugs to ...\n",
}


def made(family, monkeypatch, **request):
    found = mpirun.recognize("/mpi/bin/mpirun", VERSIONS[family])
    monkeypatch.setattr(mpirun, "find", lambda: found)
    monkeypatch.setattr(command_line.os, "geteuid", lambda: 1000)
    asked = Request(["python", "train.py"], **request)
    placed = placement.place(asked, {})
    line = command_line.make(asked, placed, {"PATH": "/bin", "LD_LIBRARY_PATH": "/mpi/lib"})
    size = len(command_line.RANK)
    assert line.arguments[-size:] == command_line.RANK
    return line, " ".join(line.arguments[:-size])


TWO = [HostSlots("h1", 4), HostSlots("h2", 2)]


@pytest.mark.parametrize(
    ("family", "hosts", "expected"),
    [
        (mpirun.HYDRA, None, ["-launcher fork -np 3"]),
        (mpirun.HYDRA, TWO, ["-np 6", "-hosts h1:4,h2:2"]),
        (mpirun.INTEL, None, ["-bootstrap fork -np 3"]),
        (mpirun.INTEL, TWO, ["-n 4 -host h1", ": -n 2 -host h2"]),
        (mpirun.OPEN_MPI_4, None, ["-np 3 --bind-to none", "--oversubscribe"]),
        (mpirun.OPEN_MPI_4, TWO, ["-H h1:4,h2:2", "--mca plm_rsh_args", "-x LD_LIBRARY_PATH"]),
        (mpirun.OPEN_MPI_5, None, ["--map-by slot:OVERSUBSCRIBE", "-x EASYDDL_LAUNCH"]),
        (mpirun.OPEN_MPI_5, TWO, ["-H h1:4,h2:2", "--prtemca plm_ssh_args", "-x PATH"]),
    ],
)
def test_command_lines(family, hosts, expected, monkeypatch):
    _, text = made(family, monkeypatch, hosts=hosts, np=None if hosts else 3)
    for words in expected:
        assert words in text


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (mpirun.HYDRA, ["-launcher rsh -launcher-exec /bin/false", "-iface eth1"]),
        (mpirun.INTEL, ["-bootstrap rsh -bootstrap-exec /bin/false", "-iface eth1"]),
        (mpirun.OPEN_MPI_4, ["plm_rsh_agent /bin/false", "oob_tcp_if_include eth1,eth2",
                          "--mca btl tcp,self,vader"]),
        (mpirun.OPEN_MPI_5, ["plm_ssh_agent /bin/false", "prte_if_include eth1,eth2",
                          "--mca btl tcp,self,sm"]),
    ],
)  # fmt: skip
def test_network_options(family, expected, monkeypatch):
    _, text = made(
        family, monkeypatch, hosts=TWO, rsh="/bin/false", nic="eth1,eth2", tcp=True, mpi_args=["-v"]
    )
    for words in [*expected, " -v"]:
        assert words in text


def test_ranks_are_not_bound_by_the_launcher(monkeypatch):
    line, _ = made(mpirun.INTEL, monkeypatch, np=2)
    assert line.environment["I_MPI_PIN"] == "0"


def test_a_launcher_of_another_mpi(monkeypatch):
    with pytest.raises(RuntimeError, match="`--launcher openmpi` does not match"):
        made(mpirun.HYDRA, monkeypatch, np=2, launcher="openmpi")


@pytest.mark.parametrize(
    ("request_", "variables", "expected"),
    [
        ({"hosts": TWO}, {}, ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]),
        ({"hosts": TWO, "rsh": "/bin/rsh"}, {"HYDRA_LAUNCHER": "ssh"}, ["/bin/rsh"]),
        # Nobody knows, or knows here, by what mpirun reaches the hosts.
        ({"np": 2}, {}, None),
        ({"hosts": TWO}, {"PBS_NODEFILE": "nodes"}, None),
        ({"hosts": TWO}, {"OMPI_MCA_plm_rsh_agent": "/etc/mpi/kubexec.sh"}, None),
        ({"hosts": TWO}, {"HYDRA_LAUNCHER_EXEC": "/bin/on"}, None),
        ({"hosts": TWO, "mpi_args": ["-launcher-exec", "/bin/on"]}, {}, None),
    ],
)
@pytest.mark.parametrize("family", VERSIONS)
def test_commands_on_hosts(family, request_, variables, expected, monkeypatch, tmp_path):
    """They go the way of the launcher's own ones, or no way."""
    found = mpirun.recognize("/mpi/bin/mpirun", VERSIONS[family])
    monkeypatch.setattr(mpirun, "find", lambda: found)
    (tmp_path / "nodes").write_text("h1\nh2\n")
    monkeypatch.chdir(tmp_path)
    asked = Request(["python", "train.py"], **request_)
    on_host = command_line.make(asked, placement.place(asked, {}), variables).on_host
    if expected is None:
        assert on_host is None
    else:
        assert on_host("h2", ["sh", "-c", "a 'b'"]) == [
            *expected,
            "h2",
            "sh",
            "-c",
            "'a '\"'\"'b'\"'\"''",
        ]


def test_commands_on_hosts_by_srun(monkeypatch):
    found = line_in_a_heterogeneous_job(monkeypatch, of_line=lambda line: line.on_host)
    command = found("n3", ["sh", "-c", "a 'b'"])
    assert command[0] == "srun" and command[-3:] == ["sh", "-c", "a 'b'"]
    assert {"--het-group=1", "--nodelist=n3", "--nodes=1", "--ntasks=1"} <= {*command}


def test_jobs_within_flux(monkeypatch):
    asked = Request(["x"], np=2)
    with pytest.raises(RuntimeError, match="flux run -n N"):
        command_line.make(asked, placement.place(asked, {}), {"FLUX_JOB_ID": "f1"})


@pytest.mark.parametrize(
    ("listed", "size", "expected"),
    [
        ("h1:4,h2:4", None, "h1:4,h2:4"),
        ("h1:4,h2:4", 5, "h1:4,h2:1"),
        ("h1:4,h2:4", 3, "h1:3"),
        ("h1,h2,h3", 7, "h1:3,h2:2,h3:2"),
        ("h1,h2,h3", 2, "h1:1,h2:1"),
    ],
)
def test_placement(listed, size, expected):
    placed = placement.place(Request(["x"], size, host_list.parse(listed)), {})
    assert ",".join(map(str, placed.hosts)) == expected
    names = [placed.host_of(rank) for rank in range(placed.size)]
    assert names == [host.name for host in placed.hosts for _ in range(host.slots)]


def test_placement_in_an_allocation():
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)"}
    placed = placement.place(Request(["x"]), slurm)
    assert ",".join(map(str, placed.hosts)) == "n1:2,n2:2"
    assert "srun" in placed.scheduler.commands and not placed.local
    with pytest.raises(ValueError, match=r"`-np 8` asks for more ranks .* has 4"):
        placement.place(Request(["x"], 8), slurm)
    named = placement.place(Request(["x"], 2, host_list.parse("h9:2")), slurm)
    assert named.scheduler is None


def line_in_a_heterogeneous_job(
    monkeypatch, of_line=lambda line: line.arguments, env=HETEROGENEOUS, **request
):
    found = mpirun.recognize("/mpi/bin/mpirun", VERSIONS[mpirun.HYDRA])
    monkeypatch.setattr(mpirun, "find", lambda: found)
    monkeypatch.setattr(command_line.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(command_line, "_offered_by_srun", lambda found: "pmi2")
    asked = Request(["python", "train.py"], **request)
    return of_line(command_line.make(asked, placement.place(asked, env), env))


def test_each_group_of_a_heterogeneous_job_of_slurm(monkeypatch):
    line = line_in_a_heterogeneous_job(monkeypatch)
    colon = line.index(":")
    first, second = line[1:colon], line[colon + 1 :]
    for group in (first, second):
        assert "--mpi=pmi2" in group and group[-len(command_line.RANK) :] == command_line.RANK
    assert {"--het-group=0", "--cpus-per-task=2", "--ntasks=2", "--nodelist=n1,n1"} <= {*first}
    assert {"--het-group=1", "--nodes=2", "--ntasks=3", "--nodelist=n2,n2,n3"} <= {*second}
    assert not any(option.startswith("--cpus-per-task") for option in second)


def test_some_groups_of_a_heterogeneous_job_of_slurm(monkeypatch):
    assert ":" not in line_in_a_heterogeneous_job(monkeypatch, np=2)
    named = line_in_a_heterogeneous_job(monkeypatch, hosts=host_list.parse("n3:1"))
    assert ":" not in named and "--het-group=1" in named
    elsewhere = line_in_a_heterogeneous_job(monkeypatch, hosts=host_list.parse("n9:1"))
    assert elsewhere[0] == "/mpi/bin/mpirun"
    with pytest.raises(ValueError, match=r"-H names the host n9, .* \(n1, n2, n3\)"):
        line_in_a_heterogeneous_job(monkeypatch, hosts=host_list.parse("n9:1"), launcher="srun")


def test_mpirun_in_a_heterogeneous_job_of_slurm(monkeypatch):
    assert "-hosts" in line_in_a_heterogeneous_job(monkeypatch, np=2, launcher="hydra")
    with pytest.raises(RuntimeError, match=r"heterogeneous job .* Use `--launcher srun`"):
        line_in_a_heterogeneous_job(monkeypatch, launcher="hydra")


def test_mpirun_on_named_hosts_of_a_heterogeneous_job_of_slurm(monkeypatch):
    asked = {"hosts": host_list.parse("n1:1,n3:1"), "launcher": "hydra"}
    line = line_in_a_heterogeneous_job(monkeypatch, **asked)
    assert line[line.index("-hosts") + 1] == "n1:1,n3:1"
    by_srun = {**HETEROGENEOUS, "HYDRA_LAUNCHER": "slurm"}
    with pytest.raises(RuntimeError, match=r"heterogeneous job .* Use `--launcher srun`"):
        line_in_a_heterogeneous_job(monkeypatch, env=by_srun, **asked)


CPUS = frozenset({0, 1, 2, 5})


def test_a_job_on_some_cpus(monkeypatch):
    _, text = made(mpirun.HYDRA, monkeypatch, np=2, cpus=CPUS)
    assert "-launcher fork -np 2" in text
    placed = placement.place(Request(["x"], 2, cpus=CPUS), {})
    assert str(placed) == "2 ranks on the CPUs 0-2,5 of this host"


def test_some_cpus_of_an_allocation_on_this_host(monkeypatch):
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": socket.gethostname()}
    request = Request(["x"], 2, cpus=CPUS)
    placed = placement.place(request, slurm)
    found = mpirun.recognize("/mpi/bin/mpirun", VERSIONS[mpirun.HYDRA])
    monkeypatch.setattr(mpirun, "find", lambda: found)
    monkeypatch.setattr(command_line.shutil, "which", lambda name: f"/bin/{name}")
    text = " ".join(command_line.make(request, placed, slurm).arguments)
    assert f"-launcher fork -np 2 -hosts {socket.gethostname()}:2" in text
    asked = Request(["x"], 2, cpus=CPUS, launcher="srun")
    with pytest.raises(ValueError, match=r"`--cpus` cannot limit .*Leave out `--launcher srun`"):
        command_line.make(asked, placed, slurm)


def test_cpus_of_other_hosts():
    with pytest.raises(ValueError, match=r"`--cpus` .* -H has other hosts.* h1:4,h2:2"):
        placement.place(Request(["x"], None, TWO, cpus=CPUS), {})
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "1(x2)"}
    with pytest.raises(ValueError, match=r"the allocation of Slurm's srun has other hosts"):
        placement.place(Request(["x"], cpus=CPUS), slurm)


def cores(count, threads=1):
    """The logical CPUs of each core, numbered as on x86: second threads after all first ones."""
    return [[core + count * thread for thread in range(threads)] for core in range(count)]


def test_binding_is_even_and_disjoint():
    for ranks in (1, 2, 3, 4, 7, 8):
        for threads in (1, 2):
            shares = binding.partition([list(range(8 * threads))] * ranks, cores(8, threads))
            assert sorted(cpu for share in shares for cpu in share) == list(range(8 * threads))
            sizes = [len(share) // threads for share in shares]
            assert max(sizes) - min(sizes) <= 1
            for share in shares:
                assert {cpu % 8 for cpu in share} == {cpu for cpu in share if cpu < 8}


def test_binding_leaves_what_the_launcher_bound():
    assert binding.partition([[0, 1], [2, 3]], cores(4)) is None
    assert binding.partition([[0, 1], [1, 2]], cores(4)) is None


def test_ranks_share_cores_where_there_are_too_few():
    assert binding.partition([[0, 1]] * 3, cores(8)) is None
    assert binding.partition([[0, 8]] * 2, cores(8, threads=2)) is None


def test_a_current_directory_that_was_deleted(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cli.main(["run", "-np", "1", "--timeline", "traces", "x"]) == 2
    assert "The current directory does not exist any more" in capsys.readouterr().err


def test_ctrl_c_before_a_job_prints_no_traceback(monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(placement, "place", interrupt)
    assert cli.main(["run", "-np", "1", "x"]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "easyddl: interrupted\n"


@pytest.mark.parametrize(("seconds", "expected"), [(10, 8), (30, 25), (60, 55)])
def test_easyddl_run_gives_up_before_those_who_wait_for_it(seconds, expected, monkeypatch):
    """It knows the reason, which they show."""
    monkeypatch.setattr(doctor_start, "Program", lambda command, token="": command)
    options = argparse.Namespace(launcher="auto", rsh=None, nic=None, start_timeout=seconds)
    for line in (
        run_process.command(2, None, [], None, seconds, (), 5),
        doctor_start.mpi_job(["h1", "h2"], options),
    ):
        assert float(line[line.index("--start-timeout") + 1]) == expected


def test_names_and_values_of_variables():
    read = environment.variables(["A=1=2", "B", "C="], {"B": "b"})
    assert read == {"A": "1=2", "B": "b", "C": ""}


def test_variables_that_ranks_get():
    ours = {"HOME": "/h", "SSH_TTY": "x", "PMI_RANK": "0", "SLURM_JOB_ID": "1", "_": "x",
            "A_B": "1", "PWD": "/", "OMPI_X": "1", "EASYDDL_OVERLAP": "0",
            "EASYDDL_LAUNCH": "{}"}  # fmt: skip
    got = environment.forwarded(ours, Request(["x"], environment={"C": "2"}))
    assert got == {
        "HOME": "/h",
        "A_B": "1",
        "EASYDDL_OVERLAP": "0",
        "C": "2",
        "PYTHONHASHSEED": "0",  # texts have the same hashes on all ranks
    }
    ours["PYTHONHASHSEED"] = "random"
    assert environment.forwarded(ours, Request(["x"]))["PYTHONHASHSEED"] == "random"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"WARNING: All log messages before absl::InitializeLog() is called are written", True),
        (b"I0000 00:00:1795402497.820340    6560 port.cc:153] oneDNN custom", True),
        (b"2026-01-01 10:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN", True),
        (b"2026-01-01 10:00:00.123456: W tensorflow/core/util/port.cc:153] trouble", False),
        (b"W0000 00:00:1795402497.820340    6560 port.cc:153] trouble", False),
        (b"E0000 00:00:1795402497.820340    6560 port.cc:153] trouble", False),
        (b"WARNING: of the script", False),
    ],
)
def test_startup_lines(line, expected):
    assert startup_lines.is_information(line) is expected


def test_each_startup_line_is_shown_once():
    shown = startup_lines.Shown()
    again = (
        b"WARNING: All log messages before absl::InitializeLog() is called are written\n",
        b"I0000 00:00:%d.820340    6560 port.cc:153] oneDNN custom\n",
        b"2026-01-01 10:00:%d.123456: I tensorflow/core/platform/cpu_feature_guard.cc:2] This\n",
    )
    for seconds in (10, 20):
        for line in again:
            line = line % seconds if b"%d" in line else line
            assert not shown.shows(1, line)
            assert shown.shows(0, line) is (seconds == 10), line
    # The lines of the script, and messages of other parts of TensorFlow, may come several times.
    other = b"I0000 00:00:1795402497.820340    6560 device_compiler.h:196] Compiled cluster\n"
    for line in (b"a line\n", b"W0000 00:00:1.8 6 port.cc:153] trouble\n", other):
        for _ in range(2):
            assert shown.shows(0, line), line
    assert shown.shows(1, b"a line\n")


def rank(number, host="h1", **state):
    return verdict.Rank(number, {"host": host, "kernel": host}, link=None, **state)


ABORTED = "application called MPI_Abort(MPI_COMM_WORLD, 9) - process 1"
DIED = "easyddl: rank 1 on host h1 (process 7) died: it was killed, crashed."


def ranks_of_which_one_died(**state):
    return [
        rank(0, status=1, ended_at=1.0, lines=[DIED]),
        rank(1, after_kill=True, ended_at=2.0, **state),
        rank(2, status=143, ordered=True, ended_at=3.0),
    ]


@pytest.mark.parametrize(
    ("ranks", "number", "status", "words"),
    [
        # The earliest that was not told to end.
        (
            [
                rank(0, status=143, ordered=True, ended_at=1.0),
                rank(1, status=5, ended_at=3.0, lines=["why"]),
                rank(2, status=6, ended_at=4.0),
                rank(3, status=0, ended_at=0.5),
            ],
            1, 5, "rank 1 on host h1 failed first, with exit status 5. Its last lines:\n    why",
        ),
        # The one that aborted, not the one that noticed it.
        (
            [
                rank(0, status=15, after_kill=True, ended_at=1.0, lines=["Broken pipe"]),
                rank(1, status=143, ordered=True, after_kill=True, ended_at=2.0, lines=[ABORTED]),
            ],
            1, 9, "exit status 9",
        ),
        # The one in which MPI could not start.
        (
            [rank(0, status=143, lines=["Abort(2246031): Fatal error in internal_Init: Other"])],
            0, 1, "failed first, with exit status 1. ",
        ),
        # The one that died, not the one that reports it, if it has ended.
        (ranks_of_which_one_died(status=137), 1, 137, "SIGKILL"),
        (ranks_of_which_one_died(status=137, ordered=True), 1, 137, "SIGKILL"),
        (ranks_of_which_one_died(status=None), 0, 1, "exit status 1"),
        (
            [
                rank(0, status=143, ordered=True, ended_at=1.0),
                rank(1, "h2", lost="it does not answer", ended_at=2.0),
                rank(2, "h2", lost="it does not answer", ended_at=2.1),
            ],
            1, 1, "host h2 was lost, and with it ranks 1, 2: it does not answer.",
        ),
        ([rank(0, status=0), rank(1, status=143, ordered=True)], None, None, None),
    ],
)  # fmt: skip
def test_the_first_failure(ranks, number, status, words):
    first = verdict.first_failure(ranks)
    assert (first and first.number, first and verdict.status_of(first)) == (number, status)
    assert first is None or words in verdict.text_of(first, ranks)


ERROR = {"text": "ValueError: a mistake", "line": ""}
SILENT = "rank 1 on host h2 does not answer: it is stopped, or cannot be reached"
SAVED = "easyddl: received SIGTERM on rank 0. Saved epoch 2, step 3. Start the same script again"


@pytest.mark.parametrize(
    "ranks",
    [
        # Slurm has killed its supervisor, and those of the others.
        [
            rank(0, lost="it has ended", ended_at=2.0, error=ERROR, failed_at=1.0),
            rank(1, lost="it has ended", ended_at=2.1),
        ],
        # The other was stopped for a while, and went on.
        [rank(0, status=1, lines=[SILENT], error=ERROR, failed_at=1.0)],
        # The disk of its output is full, and the script has taken that for a preemption.
        [
            rank(0, status=1, problem="No space left on device", ended_at=2.0),
            rank(1, status=143, lines=[SAVED], ended_at=1.0),
        ],
    ],
    ids=["supervisor killed", "silent before", "disk full"],
)
def test_an_error_of_one_rank_is_no_loss_and_no_preemption(ranks):
    first = verdict.first_failure(ranks)
    outcome = verdict.outcome_of(first, ranks)
    assert (first.number, outcome.cause, outcome.status) == (0, verdict.Cause.SCRIPT, 1)
    assert (first.problem or "a mistake") in verdict.text_of(first, ranks)


def test_why_ranks_were_killed():
    ranks = [rank(number, ordered=True, status=137) for number in range(2)]
    text = " Ranks 0, 1 were killed before their processes had ended: "
    assert verdict.killed_text(ranks, 30.0) == f"{text}`--grace` is 30 s."
    assert verdict.killed_text(ranks, 30.0, "SIGINT") == f"{text}a second SIGINT came."
    assert verdict.killed_text([rank(0, ordered=True, status=0)], 30.0, "SIGINT") == ""


def test_a_problem_ends_in_one_mark():
    for problem, end in (("train.py: no", "no."), ("Did you mean that?", "that?")):
        told = verdict.text_of(rank(1, status=127, problem=problem), [])
        assert told.startswith("rank 1 on host h1 failed: ") and told.endswith(f" {end}")


def test_how_a_process_ended():
    assert processes.end_of(3) == "ended with status 3"
    assert processes.end_of(-9) == "was killed by SIGKILL"
    assert processes.end_of(-250) == "was killed by signal 250"


def test_ranks_that_stopped_after_a_signal_have_not_failed():
    said = "easyddl: received SIGTERM on rank 1. Saved epoch 2, step 3. Start the same script again"
    ranks = [rank(0, "a", status=143, lines=[said]), rank(1, "a", status=143)]
    assert verdict.text_of(ranks[1], ranks) == (
        "the ranks have ended with exit status 143: received SIGTERM on rank 1. "
        "Saved epoch 2, step 3."
    )
    ranks[0].lines = ["a line"]
    assert "rank 1 on host a failed first: it was killed by SIGTERM" in verdict.text_of(
        ranks[1], ranks
    )
