"""`easyddl doctor` on hosts made of network namespaces, with faults put in."""

import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import time

import bad_network
import mpi
import network
import pytest

REASON = network.missing()
pytestmark = [pytest.mark.mpirun, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


@pytest.mark.gate
def test_good_hosts():
    with network.Network(3, mbit=1000) as net:
        status, report = bad_network.doctor(net, "--racks", "x,x,y")
        left = bad_network.processes(net)
    assert status == 0, report["findings"]
    assert report["can_start"]
    assert bad_network.messages(report, "error") == []
    assert bad_network.accused(report) == []
    assert [host["name"] for host in report["hosts"]] == net.hosts
    assert [host["hostname"] for host in report["hosts"]] == net.hosts
    assert len(report["links"]) == 6
    for link in report["links"]:
        assert 0 < link["min_rtt"] < 1
        assert link["sent"] > 300
        assert link["rate"] < 1.2e9 / 8
    assert left == []


def test_a_bad_link_is_named():
    fault = random.choice(bad_network.FAULTS)  # each of them: tutorials/benchmarks/doctor.py
    print("The fault:", fault)
    with network.Network(4, mbit=1000) as net, bad_network.spoiled(net, fault, [("h2", "h4")]):
        status, report = bad_network.doctor(net)
    assert bad_network.accused(report) == [("h2", "h4")], report["findings"]
    assert status == 0


@pytest.mark.longest
@pytest.mark.parametrize("fault", bad_network.FAULTS)
def test_a_bad_host_is_named(fault):
    with network.Network(4, mbit=1000) as net, bad_network.spoiled(net, fault, [("h3", None)]):
        _, report = bad_network.doctor(net)
    assert bad_network.accused(report) == [("h3",)], report["findings"]


def test_what_is_wrong_with_hosts_is_named():
    """A name that no host has, and a host behind a firewall."""
    with network.Network(3) as net:
        bad_network.close_ports(net, "h3")
        timeout = ("--start-timeout", "40")
        status, report = bad_network.doctor(net, *timeout, hosts=[*net.hosts, "nowhere"])
        left = bad_network.processes(net)
    errors = bad_network.messages(report, "error")
    assert status == 1
    assert not report["can_start"]
    assert bad_network.accused(report, "hosts") == [("nowhere",)], errors
    # MPICH's mpirun now and then ends without what the rsh printed. `easyddl run` asks it again.
    said = "`rsh nowhere` has failed: Cannot open network namespace"
    assert any(said in message for message in errors), errors
    assert bad_network.accused(report, "ports") == [("h3",)], errors
    assert any("ports" in message and "timed out" in message for message in errors), errors
    assert left == []


@pytest.mark.skipif(mpi.is_open_mpi(), reason="it passes the addresses of its host")
def test_the_name_of_this_host_is_unknown_on_another():
    with network.Network(2) as net:
        net.set_names("h2", {"h2": "h2"})
        _, report = bad_network.doctor(net)
        (told,) = bad_network.messages(report, "error")
        status, report = bad_network.doctor(net, "--nic", "eth0", "--seconds", "5")
    assert "Host h2 cannot look up the name of this host: h1 (" in told and "`--nic`" in told, told
    assert status == 0, report["findings"]


@contextlib.contextmanager
def examination(net):
    """Runs `easyddl doctor` on all hosts of a network, and ends it in any case."""
    line = ["-m", "easyddl", "doctor", "-H", ",".join(net.hosts), "--rsh", net.rsh]
    job = subprocess.Popen(
        net.on("h1", [sys.executable, *line]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=net.environment(),
        start_new_session=True,
    )
    try:
        yield job
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()


def test_an_interrupt_ends_everything():
    with network.Network(2) as net:
        with examination(net) as job:
            wait_for(lambda: any("doctor.agent" in line for _, line in agents_on(net, "h2")))
            os.killpg(job.pid, signal.SIGINT)
            output, _ = job.communicate(timeout=30)
        wait_for(lambda: not bad_network.processes(net))
    assert "interrupted" in output
    assert job.returncode in (130, -signal.SIGINT), output


def agents_on(net, host):
    return [each for each in bad_network.processes(net) if each[0] == host]


def wait_for(condition, seconds=40, what=lambda: "it did not happen in time"):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.1)


@pytest.mark.soak
def test_a_host_that_is_cut_off_is_named():
    with network.Network(3, mbit=1000) as net:
        with examination(net) as job:
            wait_for(lambda: any("doctor.agent" in line for _, line in agents_on(net, "h3")))
            time.sleep(2)
            net.cut_off("h3")
            output, _ = job.communicate(timeout=90)
        left = functools.partial(bad_network.processes, net)
        wait_for(lambda: not left(), seconds=90, what=left)
    assert job.returncode == 1, output
    assert "ERROR" in output
    assert "h3" in output
