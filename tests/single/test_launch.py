"""The parts of `easyddl run` that need no job: placement, command lines, binding, verdicts."""

import pathlib
import socket

import pytest

from easyddl.launch import (
    binding,
    command_line,
    environment,
    granted,
    mpi,
    placement,
    startup_lines,
    verdict,
)
from easyddl.launch.lines import Lines
from easyddl.launch.request import Request
from easyddl.runtime import hosts
from easyddl.runtime.hosts import HostSlots

VERSIONS = {
    mpi.HYDRA: "HYDRA build details:\n    Version:                                 5.0.2\n",
    mpi.INTEL: "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260101\n",
    mpi.OPEN_MPI_4: "mpirun (Open MPI) 4.1.4\n\nReport bugs to ...\n",
    mpi.OPEN_MPI_5: "mpirun (Open MPI) 5.0.11\n\nReport bugs to ...\n",
}


@pytest.mark.parametrize("family", VERSIONS)
def test_mpis_are_recognized(family):
    assert mpi.recognize("/bin/mpirun", VERSIONS[family]).family == family


def made(family, monkeypatch, **request):
    found = mpi.recognize("/mpi/bin/mpirun", VERSIONS[family])
    monkeypatch.setattr(mpi, "find", lambda: found)
    monkeypatch.setattr(command_line.os, "geteuid", lambda: 1000)
    asked = Request(["python", "train.py"], **request)
    placed = placement.place(asked, {})
    line = command_line.make(asked, placed, {"PATH": "/bin", "LD_LIBRARY_PATH": "/mpi/lib"})
    assert line.arguments[-2:] == command_line.RANK
    return line, " ".join(line.arguments[:-3])


TWO = [HostSlots("h1", 4), HostSlots("h2", 2)]


@pytest.mark.parametrize(
    ("family", "hosts", "expected"),
    [
        (mpi.HYDRA, None, ["-launcher fork -np 3"]),
        (mpi.HYDRA, TWO, ["-np 6", "-hosts h1:4,h2:2"]),
        (mpi.INTEL, None, ["-bootstrap fork -np 3"]),
        (mpi.INTEL, TWO, ["-n 4 -host h1", ": -n 2 -host h2"]),
        (mpi.OPEN_MPI_4, None, ["-np 3 --bind-to none", "--oversubscribe"]),
        (mpi.OPEN_MPI_4, TWO, ["-H h1:4,h2:2", "--mca plm_rsh_args", "-x LD_LIBRARY_PATH"]),
        (mpi.OPEN_MPI_5, None, ["--map-by slot:OVERSUBSCRIBE", "-x EASYDDL_LAUNCH"]),
        (mpi.OPEN_MPI_5, TWO, ["-H h1:4,h2:2", "--prtemca plm_ssh_args", "-x PATH"]),
    ],
)
def test_command_lines(family, hosts, expected, monkeypatch):
    _, text = made(family, monkeypatch, hosts=hosts, np=None if hosts else 3)
    for words in expected:
        assert words in text


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        (mpi.HYDRA, ["-launcher rsh -launcher-exec /bin/false", "-iface eth1"]),
        (mpi.INTEL, ["-bootstrap rsh -bootstrap-exec /bin/false", "-iface eth1"]),
        (mpi.OPEN_MPI_4, ["plm_rsh_agent /bin/false", "oob_tcp_if_include eth1,eth2",
                          "--mca btl tcp,self,vader"]),
        (mpi.OPEN_MPI_5, ["plm_ssh_agent /bin/false", "prte_if_include eth1,eth2",
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
    line, _ = made(mpi.INTEL, monkeypatch, np=2)
    assert line.environment["I_MPI_PIN"] == "0"


def test_a_launcher_of_another_mpi(monkeypatch):
    with pytest.raises(RuntimeError, match="`--launcher openmpi` does not fit"):
        made(mpi.HYDRA, monkeypatch, np=2, launcher="openmpi")


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
    placed = placement.place(Request(["x"], size, hosts.parse(listed)), {})
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
    named = placement.place(Request(["x"], 2, hosts.parse("h9:2")), slurm)
    assert named.scheduler is None


CPUS = frozenset({0, 1, 2, 5})


def test_a_job_on_some_cpus(monkeypatch):
    _, text = made(mpi.HYDRA, monkeypatch, np=2, cpus=CPUS)
    assert "-launcher fork -np 2" in text
    placed = placement.place(Request(["x"], 2, cpus=CPUS), {})
    assert str(placed) == "2 ranks on the CPUs 0-2,5 of this machine"


def test_some_cpus_of_an_allocation_on_this_machine(monkeypatch):
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": socket.gethostname()}
    request = Request(["x"], 2, cpus=CPUS)
    placed = placement.place(request, slurm)
    found = mpi.recognize("/mpi/bin/mpirun", VERSIONS[mpi.HYDRA])
    monkeypatch.setattr(mpi, "find", lambda: found)
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


def test_a_launcher_that_does_not_pass_the_cpus_on():
    placed = placement.place(Request(["x"], 2, cpus=CPUS), {})
    got = hellos("h1", "h1")
    got[0]["cpus"], got[1]["cpus"] = [0, 1], [2, 5]
    assert granted.problem(placed, got, "1") is None
    got[1]["cpus"] = [2, 3]
    told = granted.problem(placed, got, "1")
    assert "Rank 1 may use the CPUs 2-3, but `--cpus` allows 0-2,5" in told


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


def hellos(*hosts, size=None, version="1"):
    return {
        rank: {
            "host": host,
            "machine": host,
            "addresses": ["10.0.0." + host[1:]],
            "size": size or len(hosts),
            "version": version,
        }
        for rank, host in enumerate(hosts)
    }


def placed(text):
    return placement.place(Request(["x"], None, hosts.parse(text)), {})


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("h1:2,h2:1", hellos("h1", "h1", "h2")),
        ("10.0.0.1:1,10.0.0.2:1", hellos("h1", "h2")),
        ("alias:1,h2:1", hellos("h1", "h2")),
        ("h1.site:1,h2.site:1", hellos("h1", "h2")),
    ],
)
def test_what_was_granted_as_asked(asked, got):
    assert granted.problem(placed(asked), got, "1") is None


@pytest.mark.parametrize(
    ("asked", "got", "words"),
    [
        ("h1:1,h2:1", hellos("h1", "h1"), "but it runs on h1 (2 ranks)"),
        ("h1:2,h2:2", hellos("h1", "h2", "h2", "h2"), "but it runs on h1 (1 rank), h2 (3 ranks)"),
        ("h1:1,h2:1", hellos("h2", "h1"), "Rank 0 was to run on h1, but it runs on h2"),
        ("10.0.0.1:1", hellos("h2"), "Rank 0 was to run on 10.0.0.1"),
        ("h1:2", hellos("h1", "h1", size=1), "jobs of 1 rank(s) instead of one job of 2"),
        ("h1:1", hellos("h1", version="2"), "The host h1 (rank 0) has easyddl 2, and this"),
    ],
)
def test_what_was_not_granted(asked, got, words):
    assert words in granted.problem(placed(asked), got, "1")


def test_names_and_values_of_variables():
    read = environment.variables(["A=1=2", "B", "C="], {"B": "b"})
    assert read == {"A": "1=2", "B": "b", "C": ""}


def test_variables_that_ranks_get():
    ours = {"HOME": "/h", "SSH_TTY": "x", "PMI_RANK": "0", "SLURM_JOB_ID": "1", "_": "x",
            "A_B": "1", "PWD": "/", "OMPI_X": "1", "EASYDDL_OVERLAP": "0",
            "EASYDDL_LAUNCH": "{}"}  # fmt: skip
    got = environment.forwarded(ours, Request(["x"], environment={"C": "2"}), "/traces")
    assert got == {
        "HOME": "/h",
        "A_B": "1",
        "EASYDDL_OVERLAP": "0",
        "C": "2",
        "EASYDDL_TIMELINE": "/traces",
    }


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_do_not_depend_on_how_data_arrive(size):
    text = b"one\ntwo\r\nbar 1\rbar 2\rbar 3\n\nlast"
    lines, found = Lines(), []
    for begin in range(0, len(text), size):
        found += lines.add(text[begin : begin + size])
    assert found == [b"one\n", b"two\r\n", b"bar 1\r", b"bar 2\r", b"bar 3\n", b"\n"]
    assert lines.rest() == b"last"
    assert lines.last() == ["one", "two", "bar 3", "last"]


def test_the_last_lines_are_few():
    lines = Lines(keep=3)
    lines.add(b"".join(b"%d\n" % i for i in range(10)))
    assert lines.last() == ["7", "8", "9"]


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


def rank(number, host="h1", **state):
    return verdict.Rank(number, {"host": host, "machine": host}, link=None, **state)


def test_the_first_failure_is_the_earliest_that_was_not_ordered():
    ranks = [
        rank(0, status=143, ordered=True, ended_at=1.0),
        rank(1, status=5, ended_at=3.0, lines=["why"]),
        rank(2, status=6, ended_at=4.0),
        rank(3, status=0, ended_at=0.5),
    ]
    first = verdict.first_failure(ranks)
    assert first.number == 1 and verdict.status_of(first) == 5
    assert verdict.text_of(first, ranks).splitlines() == [
        "rank 1 on host h1 failed first, with exit status 5. Its last lines:",
        "    why",
    ]


def test_a_rank_that_aborts_comes_before_those_that_notice():
    ranks = [
        rank(0, status=15, after_kill=True, ended_at=1.0, lines=["Broken pipe"]),
        rank(1, status=143, ordered=True, after_kill=True, ended_at=2.0,
             lines=["application called MPI_Abort(MPI_COMM_WORLD, 9) - process 1"]),
    ]  # fmt: skip
    first = verdict.first_failure(ranks)
    assert first.number == 1 and verdict.status_of(first) == 9


def test_a_lost_host():
    ranks = [
        rank(0, status=143, ordered=True, ended_at=1.0),
        rank(1, "h2", lost="it does not answer", ended_at=2.0),
        rank(2, "h2", lost="it does not answer", ended_at=2.1),
    ]
    text = verdict.text_of(verdict.first_failure(ranks), ranks)
    assert text == "host h2 was lost, and with it ranks 1, 2: it does not answer."


def test_no_failure():
    assert verdict.first_failure([rank(0, status=0), rank(1, status=143, ordered=True)]) is None


def test_no_file_of_launch_imports_a_framework():
    for path in pathlib.Path(verdict.__file__).parent.glob("*.py"):
        for name in ("keras", "numpy", "tensorflow", "mpi4py"):
            assert f"import {name}\n" not in path.read_text(), path


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
