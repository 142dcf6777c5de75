"""Trainings of `easyddl run --restarts` that lose ranks, hosts and networks at random times."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import time

import mpi
import network
import pytest
import ssh
from restarted_run import Run

REASON = ssh.missing()
pytestmark = [
    pytest.mark.mpirun,
    pytest.mark.soak,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]

JOB = pathlib.Path(__file__).with_name("counted_training_job.py")
RANK = r"rank \d of \d on (h\d) in start 1 is process (\d+)$"


@pytest.fixture
def three_hosts():
    with network.Network(3) as net, ssh.Servers(net) as servers:
        yield net, servers


def kill_ranks(job, host):
    for where, pid in re.findall(RANK, job.output, re.M):
        if where == host:
            os.kill(int(pid), signal.SIGKILL)


def kill_a_rank(net, job):
    kill_ranks(job, random.choice(("h2", "h3")))


def lose_a_host(net, job):
    net.end_processes(random.choice(("h2", "h3")))


def cut_for_ever(net, job):
    net.cut_off(random.choice(("h2", "h3")))


def cut_for(seconds):
    def cut(net, job):
        host = random.choice(("h2", "h3"))
        net.cut_off(host)
        time.sleep(seconds)
        net.connect_again(host)

    return cut


def freeze_a_host(net, job):
    host = random.choice(("h2", "h3"))
    net.signal(host, signal.SIGSTOP)
    net.cut_off(host)  # the kernel of a frozen host does not answer either


def lose_two_hosts(net, job):
    net.end_processes("h2")
    time.sleep(random.random())
    net.end_processes("h3")


def lose_a_host_during_the_restart(net, job):
    kill_ranks(job, "h3")
    job.wait_for("easyddl: restart 1 of")
    time.sleep(5 * random.random())
    net.end_processes("h2")


FAULTS = {
    "a rank is killed": kill_a_rank,
    "a host is lost": lose_a_host,
    "the link is down for ever": cut_for_ever,
    "the link is down for 5 s": cut_for(5),
    "the link is down for 30 s": cut_for(30),
    "a host is frozen": freeze_a_host,
    "two hosts are lost": lose_two_hosts,
    "a host is lost during the restart": lose_a_host_during_the_restart,
}
LAYOUTS = ["h1:1,h2:1,h3:1", "h1:2,h2:2,h3:2", "h2:1,h3:2"]


def started(hosts, folder, where):
    """A job with its first backup, some time later."""
    (folder / "backup").mkdir(exist_ok=True)
    job = Run(hosts, JOB, folder, hosts=where, env=mpi.ANY_BACKEND)
    ranks = sum(int(slots) for slots in re.findall(r":(\d)", where))
    job.wait_for(RANK, ranks)
    limit = time.monotonic() + 120
    while not list((folder / "backup").glob("backup-*")):
        assert time.monotonic() < limit
        time.sleep(0.1)
    time.sleep(3 * random.random())
    return job


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_training_uses_each_sample_once_an_epoch(fault, layout, three_hosts, tmp_path):
    if fault.startswith("two") and "h1" not in layout:
        pytest.skip("no host would be left")
    net = three_hosts[0]
    job = started(three_hosts, tmp_path, layout)
    try:
        FAULTS[fault](net, job)
        status = job.finish(limit=180)
    finally:
        for host in net.hosts:
            net.signal(host, signal.SIGCONT)
    # A link that comes back in time is no fault.
    assert "easyddl: restart 1 of 2" in job.output or fault == "the link is down for 5 s"
    if "not restarted: this start has saved no backup" in job.output:
        assert status == 1 and fault == "a host is lost during the restart", job.output
        return
    assert status == 0, job.output
    assert json.loads((tmp_path / "uses.json").read_text()) == [3] * 241, job.output


def test_a_full_disk_is_an_error_of_the_script(request, tmp_path):
    folder = tmp_path / "backup"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", folder], check=True)
    try:
        job = started(request.getfixturevalue("three_hosts"), tmp_path, LAYOUTS[0])
        with pytest.raises(OSError, match="No space"), open(folder / "filler", "wb") as filler:
            while True:
                filler.write(bytes(512))
                filler.flush()
        assert job.finish() == 1, job.output
        assert "No space left on device" in job.output, job.output
    finally:
        subprocess.run(["umount", folder], check=True)
