"""`easyddl run` on several hosts: network namespaces, which it reaches by a real sshd on each."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

import mpi
import mpi4py
import network
import own_mpirun
import pytest
import run_job
import ssh

import easyddl

JOB = run_job.__file__
TIMEOUT = 100

REASON = ssh.missing()
pytestmark = [pytest.mark.mpirun, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


@pytest.fixture(scope="module")
def four_hosts():
    with network.Network(4) as net, ssh.Servers(net) as servers:
        yield net, servers


def command(net, *arguments, python=sys.executable):
    line = [str(python), "-m", "easyddl", "run", *map(str, arguments)]
    return net.on("h1", line)


def easyddl_run(hosts, *arguments, env=None, cwd=None, python=sys.executable):
    net, servers = hosts
    environment = servers.environment({"PYTHONPATH": path(), **(env or {})})
    line = command(net, *arguments, python=python)
    done = mpi.run_command(line, environment, TIMEOUT, cwd)
    assert_nothing_is_left(net)
    return done


def path():
    return mpi.environment()["PYTHONPATH"]


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
            if re.search(rb"run_job|launch\.supervise|hydra|ssh -|easyddl run", line):
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


PLAN = """\
format = 1
hosts = ["h3", "10.99.0.1", "h2", "h4", "h5"]
order = ["r1", "r2"]

[[groups]]
name = "r1"
members = ["h3", "10.99.0.1"]

[[groups]]
name = "r2"
members = ["h2", "h4", "h5"]
"""

SUMS = """\
import hashlib
import without_keras
from ranks import noise
import easyddl as ddl
from easyddl.runtime import world

sums = [ddl.allreduce(noise(ddl.rank(), count, "float32")) for count in (1, 4099, 300_007)]
digest = hashlib.sha256(b"".join(each.tobytes() for each in sums)).hexdigest()
layout = world.engine().world
print(f"{layout.num_groups[0]} racks, host {layout.node_rank}, {digest}.")
"""


@pytest.mark.gate
def test_a_plan_gives_the_racks(four_hosts, tmp_path):
    """The plan has the user's names, one of which is an address, and one host more."""
    plan, script = tmp_path / "plan.toml", tmp_path / "sums.py"
    plan.write_text(PLAN)
    script.write_text(SUMS)
    told = {}
    for how in ("--plan", "EASYDDL_PLAN", "--racks", "none"):
        options = {"--plan": ["--plan", plan], "--racks": ["--racks", "x,y,x,y"]}.get(how, [])
        done = easyddl_run(
            four_hosts,
            *("-H", "10.99.0.1:1,h2:1,h3:1,h4:1", "--tcp", *options, "--", sys.executable, script),
            env={"EASYDDL_PLAN": str(plan)} if how == "EASYDDL_PLAN" else {},
        )
        assert done.returncode == 0, done.stdout
        told[how] = sorted(re.findall(r"^\[(\d)\] (\d) racks, (.*)\.$", done.stdout, re.M))
        assert len(told[how]) == 4, done.stdout
    assert told["--plan"] == told["EASYDDL_PLAN"] == told["--racks"]
    assert {racks for _, racks, _ in told["--plan"]} == {"2"}
    # Ranks keep their numbers, in the order of the hosts that the user listed.
    assert [(rank, rest[:6]) for rank, _, rest in told["--plan"]] == [
        (rank, f"host {rank}") for rank in "0123"
    ]
    assert {racks for _, racks, _ in told["none"]} == {"1"}


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


def test_names_that_lead_elsewhere():
    """On h1, where the job is started, h2 is the name of h3, and `half` an alias of h2."""
    with network.Network(3) as net, ssh.Servers(net) as servers:
        net.set_names("h1", {"h1": "h1", "h2": "h3", "h3": "h3", "half": "h2"})
        for asked, status, words in (
            ("h1:1,h2:1", 0, "the name h2 leads to host h3, but on h3 it is the name of 10.99.0.2"),
            ("h1:1,h2:1,h3:1", 1, "The names h2, h3 lead to one host"),
            ("h1:1,half:1", 0, None),
            ("h1:1,10.99.0.2:1", 0, None),
        ):
            done = easyddl_run((net, servers), "-H", asked, *job("tell"))
            assert done.returncode == status, done.stdout
            assert len(facts(done.stdout)) == (0 if status else 2)
            assert (words or "easyddl: ") in done.stdout
            if words is None:
                assert "warning" not in done.stdout


@pytest.mark.parametrize("end", ["kill -ABRT $$", "exit 213"])
def test_a_launcher_that_fails_by_names_of_one_host(end, tmp_path):
    """Two helpers of Open MPI's mpirun on one host may end it before any rank has reported."""
    python = own_mpirun.environment(tmp_path, own_mpirun.VERSION + end)
    with network.Network(3) as net, ssh.Servers(net) as servers:
        net.set_names("h1", {"h1": "h1", "h2": "h3", "h3": "h3"})
        hosts = (net, servers)
        done = easyddl_run(hosts, "-H", "h1:1,h2:1,h3:1", *job("tell"), python=python)
        assert done.returncode == 1, done.stdout
        assert "The names h2, h3 lead to one host" in done.stdout, done.stdout
        done = easyddl_run(hosts, "-H", "h1:1,h3:1", *job("tell"), python=python)
        assert done.returncode == 1 and "lead to one host" not in done.stdout, done.stdout


@pytest.mark.parametrize("ports_of_mpirun", [True, False])
def test_a_firewall(ports_of_mpirun):
    """The ranks start on a host from which `easyddl run` cannot be reached, or not even that."""
    ports = "20000-20010" if ports_of_mpirun else "1-2"
    env = {"MPIEXEC_PORT_RANGE": "20000:20010"}
    if mpi.is_open_mpi():
        env = {"PRTE_MCA_oob_tcp_dynamic_ipv4_ports": "20000-20010"}
    with network.Network(2) as net, ssh.Servers(net) as servers:
        net.drop_connections("h1", ports)
        line = command(net, "-H", "h1:1,h2:1", "--start-timeout", 15, *job("tell"))
        # MPICH's process on h2 goes on trying to connect, until the servers end.
        done = mpi.run_command(line, servers.environment({"PYTHONPATH": path(), **env}), TIMEOUT)
    assert done.returncode == 1, done.stdout
    *before, last = done.stdout.splitlines()
    # Open MPI's mpirun ends by itself when its own connection fails.
    assert mpi.is_open_mpi() or "rank 1 on host h2 did not report. Host h2 cannot" in last
    assert "Host h2 cannot reach `easyddl run`" in last
    assert "does not answer). A firewall may be between them" in last
    if ports_of_mpirun:
        assert "easyddl: host h2 cannot reach `easyddl run`" in "\n".join(before), done.stdout


@pytest.fixture
def other_python(tmp_path):
    """A Python like this one, in a folder of its own."""
    folder = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    paths = (pathlib.Path(module.__file__).parents[1] for module in (mpi4py, easyddl))
    (site / "all.pth").write_text("".join(f"{path}\n" for path in paths))
    return folder / "bin" / "python"


@pytest.mark.skipif(mpi.is_open_mpi(), reason="it starts a rank without what its host lacks")
def test_what_a_host_lacks(other_python, tmp_path):
    """It ends the job at once, whatever the launcher makes of it."""
    directory, package = tmp_path / "folder" / "of_the_job", pathlib.Path(easyddl.__file__).parent
    directory.mkdir(parents=True)
    arguments = ["-H", "h1:1,h2:2", "--start-timeout", TIMEOUT, *job("tell")]
    python = {"python": other_python}
    for hidden, options, words in (
        (directory.parent, {"cwd": directory}, f"Host h2 cannot use the directory {directory}"),
        (other_python.parents[1], python, f"Host h2 has no Python at {other_python}"),
        (package, {}, f"Host h2 cannot load easyddl by {sys.executable} ("),
    ):
        with network.Network(2) as net, ssh.Servers(net) as servers:
            servers.hide("h2", hidden)
            done = easyddl_run((net, servers), *arguments, **options)
        assert done.returncode == 1, done.stdout
        assert words in done.stdout.splitlines()[-1], done.stdout
        assert not facts(done.stdout)


def test_hosts_that_lack_nothing(four_hosts):
    """A launcher that fails for another reason does not put the blame on the hosts."""
    wrong = ["--mpi-arg=-nonsense", "--mpi-arg=1"]
    done = easyddl_run(four_hosts, "-H", "h1:1,h2:1", *wrong, *job("tell"))
    assert done.returncode == 1, done.stdout
    last = done.stdout.splitlines()[-1]
    assert last.endswith(
        "before all ranks had reported. What it printed, if anything, is above."
    ), done.stdout


@pytest.mark.skipif(mpi.is_open_mpi(), reason="it passes the addresses of its host")
def test_the_name_of_the_starting_host_is_unknown_or_wrong_on_another():
    with network.Network(2) as net, ssh.Servers(net) as servers:
        net.set_names("h2", {"h2": "h2"})
        done = easyddl_run((net, servers), "-H", "h1:1,h2:1", *job("tell"))
        assert done.returncode == 1, done.stdout
        said = "Host h2 cannot look up the name of this host: h1 ("
        assert said in done.stdout.splitlines()[-1], done.stdout
        net.set_names("h2", {"h2": "h2", "h1": "h2"})
        done = easyddl_run((net, servers), "-H", "h1:1,h2:1", *job("tell"))
        said = f"Host h2 takes {net.address('h2')} for h1, the name of this host: "
        assert said in done.stdout.splitlines()[-1], done.stdout
        done = easyddl_run((net, servers), "-H", "h1:1,h2:1", "--nic", "eth0", *job("tell"))
        assert len(facts(done.stdout)) == 2, done.stdout


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
