"""`easyddl run` on several hosts: network namespaces, which it reaches by a real sshd on each."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

import mpi
import network
import pytest
import ssh

PARALLEL = pathlib.Path(__file__).parents[1] / "parallel"
JOB = PARALLEL / "run_job.py"
TIMEOUT = 100

REASON = ssh.missing()
pytestmark = [pytest.mark.mpirun, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


@pytest.fixture(scope="module")
def four_hosts():
    with network.Network(4) as net, ssh.Servers(net) as servers:
        yield net, servers


def command(net, *arguments):
    line = [sys.executable, "-m", "easyddl", "run", *map(str, arguments)]
    return net.on("h1", line)


def easyddl_run(hosts, *arguments, env=None, cwd=None):
    net, servers = hosts
    environment = servers.environment({"PYTHONPATH": path(), **(env or {})})
    done = mpi.run_command(command(net, *arguments), environment, TIMEOUT, cwd)
    assert_nothing_is_left(net)
    return done


def path():
    return ":".join([str(PARALLEL), mpi.environment()["PYTHONPATH"]])


def job(*arguments):
    return ["--", sys.executable, JOB, *arguments]


def left_on(net):
    """The command lines of what easyddl or its launcher has left on the hosts."""
    found = []
    for host in net.hosts:
        for pid in net.processes(host):
            try:
                line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            if re.search(rb"run_job|launch\.rank|hydra|ssh -|easyddl run", line):
                found.append(f"{host}: {line.decode()}")
    return found


def assert_nothing_is_left(net, seconds=10):
    limit = time.monotonic() + seconds
    while left_on(net):
        assert time.monotonic() < limit, left_on(net)
        time.sleep(0.1)


def facts(output):
    told = [json.loads(text) for text in re.findall(r"^\[ *\d+\] (\{.*\})$", output, re.M)]
    return {one["rank"]: one for one in told}


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("h1:2,h2:2", "h1 h1 h2 h2"),
        ("h1:1,h2:3,h3:2", "h1 h2 h2 h2 h3 h3"),
        ("h3:1,h1:2", "h3 h1 h1"),
        ("10.99.0.2:1,10.99.0.4:1", "h2 h4"),
        ("h1,h2,h3,h4 -np 8", "h1 h1 h2 h2 h3 h3 h4 h4"),
        ("h2:2,h4:2 -np 3", "h2 h2 h4"),
    ],
)
def test_each_host_gets_its_ranks(hosts, expected, four_hosts):
    done = easyddl_run(four_hosts, "-H", *hosts.split(), *job("tell", "a b", "$HOME", "'"))
    assert done.returncode == 0, done.stdout
    ranks = facts(done.stdout)
    assert [ranks[i]["host"] for i in range(len(ranks))] == expected.split()
    for one in ranks.values():
        assert one["arguments"] == ["a b", "$HOME", "'"]
        assert one["directory"] == os.getcwd()
    cores = len(os.sched_getaffinity(0))
    for host in set(expected.split()):
        there = [set(one["cpus"]) for one in ranks.values() if one["host"] == host]
        assert (sum(map(len, there)) == len(set().union(*there))) == (len(there) <= cores)


@pytest.mark.gate
def test_a_hostfile(four_hosts, tmp_path):
    (tmp_path / "hosts").write_text("h2 slots=1  # the first\n\nh3:1\n")
    done = easyddl_run(four_hosts, "--hostfile", tmp_path / "hosts", *job("add_up"))
    assert done.returncode == 0, done.stdout
    assert sorted(re.findall(r"^\[(\d)\] size 2 sum 3$", done.stdout, re.M)) == ["0", "1"]


@pytest.mark.parametrize(
    "variable", ["HYDRA_HOST_FILE", "I_MPI_HYDRA_HOST_FILE", "OMPI_MCA_orte_default_hostfile"]
)
def test_the_hostfile_of_the_environment(variable, four_hosts, tmp_path):
    (tmp_path / "hosts").write_text("h2:1\nh3:1\n")
    done = easyddl_run(four_hosts, *job("tell"), env={variable: str(tmp_path / "hosts")})
    assert [one["host"] for _, one in sorted(facts(done.stdout).items())] == ["h2", "h3"], (
        done.stdout
    )


def test_a_network_interface_and_tcp(four_hosts):
    done = easyddl_run(four_hosts, "-H", "h1:1,h2:1", "--nic", "eth0", "--tcp", *job("add_up"))
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("size 2 sum 3") == 2


@pytest.mark.gate
def test_a_rank_that_fails_on_another_host(four_hosts):
    done = easyddl_run(four_hosts, "-H", "h2:1,h3:1", *job("fail", "status"))
    assert done.returncode == 3, done.stdout
    verdict = done.stdout.rpartition("easyddl: ")[2]
    assert verdict.startswith("rank 1 on host h3 failed first, with exit status 3"), done.stdout
    assert "    the last line of rank 1" in verdict


def started(hosts, *arguments):
    """Starts a job on h1 to h3, and waits until its ranks sleep."""
    net, servers = hosts
    process = subprocess.Popen(
        command(net, "--quiet", "-H", "h1:1,h2:2,h3:1", *arguments, *job("sleep")),
        env=servers.environment({"PYTHONPATH": path()}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    seen = []
    while sum(" pid " in line for line in seen) < 4:  # ssh and the launcher may print, too
        seen.append(process.stdout.readline())
        if not seen[-1] or len(seen) > 50:
            mpi.stop_session(process)
            pytest.fail(f"{seen}")
    return process


def finish(process):
    try:
        return process.communicate(timeout=60)[0]
    finally:
        mpi.stop_session(process)


def test_ctrl_c_ends_all_hosts(four_hosts):
    process = started(four_hosts)
    # Of the shells between, only easyddl run gets the signal.
    for pid in four_hosts[0].processes("h1"):
        line = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"run" in line and b"easyddl" in line and line[0].endswith(b"python"):
            os.kill(pid, 2)
    rest = finish(process)
    assert process.returncode == 130, rest
    assert_nothing_is_left(four_hosts[0])


def test_a_host_that_is_killed():
    with network.Network(3) as net, ssh.Servers(net) as servers:
        process = started((net, servers))
        net.end_processes("h2")
        rest = finish(process)
        assert process.returncode != 0
        assert "easyddl: host h2 was lost, and with it ranks 1, 2: " in rest.splitlines()[-1], rest
        assert_nothing_is_left(net)


def test_a_host_that_is_cut_off():
    with network.Network(3) as net, ssh.Servers(net) as servers:
        process = started((net, servers), "--host-timeout", "6")
        net.cut_off("h2")
        rest = finish(process)
        assert process.returncode != 0
        assert rest.splitlines()[-1] == (
            "easyddl: host h2 was lost, and with it ranks 1, 2: it does not answer."
        ), rest
        assert_nothing_is_left(net)  # nor on the host that is cut off


def test_a_wrong_name(four_hosts):
    done = easyddl_run(four_hosts, "-H", "h1:1,h9:1", *job("tell"))
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert "The job did not start" in last and "cannot look up h9" in last, done.stdout


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("refused", "Permission denied"),
        ("unknown", "Host key verification failed"),
        ("absent", "Connection refused"),
        ("hanging", "rank 1 on host h2 did not report"),
    ],
)
def test_a_login_that_fails(fault, words):
    with network.Network(2) as net, ssh.Servers(net, {"h2": fault}) as servers:
        done = easyddl_run((net, servers), "-H", "h1:1,h2:1", "--start-timeout", 10, *job("tell"))
    assert done.returncode == 1
    assert words in done.stdout
    assert "The job did not start" in done.stdout.splitlines()[-1], done.stdout
    assert "`easyddl doctor`" in done.stdout


def test_another_version_of_easyddl(four_hosts, tmp_path):
    metadata = tmp_path / "h3" / "easyddl-9.9.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: easyddl\nVersion: 9.9\n")
    # A Python that finds the other version where the host is h3.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"if os.uname().nodename == 'h3': sys.path.insert(0, {str(tmp_path / 'h3')!r})\n"
    )
    done = easyddl_run(
        four_hosts,
        *("-H", "h1:1,h3:1", *job("tell")),
        env={"PYTHONPATH": f"{tmp_path}:{path()}"},
        cwd=tmp_path,  # Python looks there first, and this one may hold metadata of easyddl
    )
    assert done.returncode == 1
    assert "The host h3 (rank 1) has easyddl 9.9, and this host has" in done.stdout, done.stdout
    assert not facts(done.stdout)


def test_a_full_disk_on_another_host(four_hosts, tmp_path):
    (tmp_path / "1.log").symlink_to("/dev/full")
    done = easyddl_run(four_hosts, "-H", "h1:1,h2:1", "--output", tmp_path, *job("talk", 100))
    assert done.returncode == 1
    assert "rank 1 on host h2 failed: its output file" in done.stdout, done.stdout
    assert "No space left on device" in done.stdout
