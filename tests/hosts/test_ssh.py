"""The servers of `ssh.py`: what other tests of logins rely on."""

import time

import mpi
import network
import pytest
import ssh

TIMEOUT = 60

REASON = ssh.missing()
pytestmark = [pytest.mark.mpirun, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


@pytest.mark.gate
def test_a_command_runs_on_another_host():
    with network.Network(2) as net, ssh.Servers(net) as servers:
        command = [servers.program, "h2", "hostname; exec ssh h1 'hostname; echo $SSH_CONNECTION'"]
        # On h2 a plain `ssh` knows neither a key nor a host, so the second login is refused.
        done = mpi.run_command(net.on("h1", command), servers.environment(), TIMEOUT)
        assert done.returncode == 255 and done.stdout.startswith("h2\n"), done.stdout
        by_name = net.on("h1", ["sh", "-c", "ssh h2 hostname && ssh 10.99.0.1 hostname"])
        done = mpi.run_command(by_name, servers.environment(), TIMEOUT)
        assert (done.returncode, done.stdout) == (0, "h2\nh1\n")
        assert len(net.processes("h1")) == 1  # its server


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("refused", "Permission denied (publickey)"),
        ("absent", "Connection refused"),
        ("unknown", "Host key verification failed"),
    ],
)
def test_a_login_fails(fault, said):
    with network.Network(2) as net, ssh.Servers(net, {"h2": fault}) as servers:
        command = net.on("h1", [servers.program, "h2", "hostname"])
        done = mpi.run_command(command, servers.environment(), TIMEOUT)
    assert done.returncode == 255 and said in done.stdout, done.stdout


@pytest.mark.parametrize("fault", ["hanging", "silent"])
def test_a_login_hangs_and_leaves_nothing_behind(fault):
    with network.Network(2) as net, ssh.Servers(net, {"h2": fault}) as servers:
        command = net.on("h1", [servers.program, "h2", "hostname"])
        with pytest.raises(TimeoutError, match="took more than"):
            mpi.run_command(command, servers.environment(), 2)
        assert net.processes("h2")
        pids = net.processes("h2")
    limit = time.monotonic() + 10
    while any(map(_runs, pids)):
        assert time.monotonic() < limit
        time.sleep(0.05)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
