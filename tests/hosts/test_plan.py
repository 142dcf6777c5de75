"""`easyddl plan` on hosts made of network namespaces, which it has to measure."""

import sys

import bad_network
import mpi
import network
import pytest

from easyddl.plan import cost, plan_file

# For machines that other work keeps busy.
TIMEOUT = ("--start-timeout", "120")

REASON = network.missing()
pytestmark = [pytest.mark.mpirun, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


def plan(net, *options):
    hosts = ",".join(f"{host}:2" for host in net.hosts)
    line = ["-m", "easyddl", "plan", "-H", hosts, "--rsh", net.rsh, *TIMEOUT, *options]
    done = mpi.run_command(net.on("h1", [sys.executable, *line]), net.environment(), 400)
    assert bad_network.processes(net) == []
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_racks_in_the_worst_order(tmp_path):
    path = tmp_path / "plan.toml"
    with network.Network(4, mbit=1000, racks="x,y,x,y", uplink=200) as net:
        out = plan(net, "-o", path)
        _, unnamed = bad_network.doctor(net, *TIMEOUT, timeout=400)
        _, known = bad_network.doctor(net, "--racks", "x,y,x,y", *TIMEOUT, timeout=400)
    nest, names, rules = plan_file.read(path)
    assert nest == (("h1", "h3"), ("h2", "h4")) and set(names.values()) == {"group1", "group2"}
    grouped = [levels for _, levels in rules if levels != cost.FLAT]
    assert grouped and all(len(levels) == 2 for levels in grouped), rules
    assert f"  easyddl run --plan {path} -H h1:2,h2:2,h3:2,h4:2 " in out
    findings = [each["message"] for each in unnamed["findings"] if each["subject"] == "plan"]
    assert len(findings) == 1 and "group1: h1 h3, " in findings[0], unnamed["findings"]
    assert not any(each["subject"] == "plan" for each in known["findings"])


def test_a_flat_network():
    with network.Network(4, mbit=300) as net:
        out = plan(net)
        _, report = bad_network.doctor(net, *TIMEOUT, timeout=400)
    assert out.startswith("Nothing is proposed: "), out
    assert not any(each["subject"] == "plan" for each in report["findings"])
