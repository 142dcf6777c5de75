"""`easyddl.Ranks` on several hosts, by OpenSSH."""

import pathlib
import sys

import mpi
import network
import pytest
import ssh

SCRIPT = pathlib.Path(__file__).with_name("ranks_job.py")
REASON = ssh.missing()
pytestmark = [pytest.mark.mpirun, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


@pytest.mark.gate
def test_ranks_on_two_hosts():
    with network.Network(2) as net, ssh.Servers(net) as servers:
        before = {host: len(net.processes(host)) for host in net.hosts}
        done = mpi.run_command(
            net.on("h1", [sys.executable, SCRIPT, "h1:1,h2:2", servers.program]),
            servers.environment(mpi.environment(mpi.ANY_BACKEND)),
            timeout=120,
        )
        assert done.returncode == 0, done.stdout
        for rank, host in enumerate(["h1", "h2", "h2"]):
            assert f"[{rank}] on {host}\n" in done.stdout
        assert "error of 1 h2" in done.stdout, done.stdout
        assert {host: len(net.processes(host)) for host in net.hosts} == before, done.stdout
