"""`easyddl run --restarts` on several hosts: network namespaces, some of which are lost."""

import os
import pathlib
import re
import signal
import time

import network
import pytest
import ssh
from restarted_run import Run

REASON = ssh.missing()
pytestmark = [pytest.mark.mpirun, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

JOB = pathlib.Path(__file__).parents[1] / "launch" / "restart_job.py"


@pytest.fixture
def three_hosts():
    with network.Network(3) as net, ssh.Servers(net) as servers:
        yield net, servers


@pytest.mark.gate
@pytest.mark.parametrize("lose", ["end_processes", pytest.param("cut_off", marks=pytest.mark.full)])
def test_a_job_goes_on_without_a_lost_host(lose, three_hosts):
    job = Run(three_hosts, JOB, "wait")
    job.wait_for("waits in start 1$", 3)
    getattr(three_hosts[0], lose)("h2")
    assert job.finish() == 0, job.output
    assert "easyddl: host h2 was lost, and with it rank 1: " in job.output, job.output
    assert "easyddl: 1 host not answering: h2\n" in job.output
    begun = re.findall(r"rank (\d) of 2 on (h\d) in start 2$", job.output, re.M)
    assert sorted(begun) == [("0", "h1"), ("1", "h3")], job.output


def test_too_few_hosts_are_a_status_for_schedulers(three_hosts):
    job = Run(three_hosts, JOB, "wait", options=("--min-np", 3, "--wait", 1))
    job.wait_for("waits in start 1$", 3)
    three_hosts[0].end_processes("h3")
    assert job.finish() == os.EX_TEMPFAIL, job.output
    assert "2 slots left, fewer than `--min-np 3`" in job.output.splitlines()[-1]


def test_a_frozen_host_that_goes_on_replaces_nothing(three_hosts, tmp_path):
    """Rank 0 of the first start is frozen while it writes a file."""
    net, path = three_hosts[0], tmp_path / "file"
    job = Run(three_hosts, JOB, "write", path, hosts="h2:1,h3:1")
    job.wait_for("writes in start 1$")
    net.signal("h2", signal.SIGSTOP)
    net.cut_off("h2")  # the kernel of a frozen host does not answer either
    try:
        assert job.finish() == 0, job.output
        assert path.read_text() == "start 2"
    finally:
        net.signal("h2", signal.SIGCONT)
    limit = time.monotonic() + 30
    while any(str(JOB).encode() in line for line in command_lines(net, "h2")):
        assert time.monotonic() < limit
        time.sleep(0.1)
    assert path.read_text() == "start 2"


def command_lines(net, host):
    paths = (pathlib.Path(f"/proc/{pid}/cmdline") for pid in net.processes(host))
    return [path.read_bytes() for path in paths if path.exists()]
