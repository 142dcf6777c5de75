"""Faults of the network between hosts, and what `easyddl doctor` says of them."""

import contextlib
import json
import pathlib
import subprocess
import sys

import mpi
import network

FAULTS = ("rate", "delay", "loss")


def doctor(net, *options, hosts=None, timeout=120):
    """Runs `easyddl doctor` on the first host.

    Returns:
        Pair of the exit status and the report, read from its JSON.
    """
    names = ",".join(hosts or net.hosts)
    line = ["-m", "easyddl", "doctor", "-H", names, "--rsh", net.rsh, "--json", *options]
    command = net.on(net.hosts[0], [sys.executable, *line])
    done = mpi.run_command(command, net.environment(), timeout)
    start = done.stdout.find("{\n")
    assert start >= 0, done.stdout
    return done.returncode, json.loads(done.stdout[start:])


def accused(report, subject="links"):
    """The hosts of each finding about a subject that is not fine, sorted."""
    return [
        tuple(sorted(finding["hosts"]))
        for finding in report["findings"]
        if finding["level"] != "fine" and finding["subject"] == subject
    ]


def messages(report, level):
    return [finding["message"] for finding in report["findings"] if finding["level"] == level]


@contextlib.contextmanager
def spoiled(net, fault, ways, mbit=1000):
    """Makes the way from one host to another bad, within a context.

    The switch leads the packets of this way through two devices of its own. Between these is
    either half of the usual rate, or `slow_wire.py`, which delays or loses packets: not every
    kernel has netem.

    Args:
        net: `Network` with a speed of `mbit`, without racks.
        fault: One of `FAULTS`.
        ways: List of pairs of strings: the host that sends and the one that receives, which is
            `None` for all hosts.
        mbit: Integer.
    """
    with contextlib.ExitStack() as stack:
        for number, (a, b) in enumerate(ways):
            stack.enter_context(_detour(net, fault, number, a, b, mbit))
        yield


@contextlib.contextmanager
def _detour(net, fault, number, a, b, mbit):
    switch, port = net.namespace("switch"), f"port{net.hosts.index(a) + 1}"
    begin, middle, end = f"begin{number}", f"middle{number}", f"end{number}"
    ip(switch, "link", "add", begin, "up", "type", "veth", "peer", "name", middle)
    if fault == "rate":
        tc(switch, "qdisc", "add", "dev", begin, "root", "tbf", "rate", f"{mbit // 2}mbit",
           "burst", "256kb", "latency", "50ms")  # fmt: skip
        last, wire = middle, contextlib.nullcontext()
    else:
        last = f"last{number}"
        ip(switch, "link", "add", last, "up", "type", "veth", "peer", "name", end)
        ip(switch, "link", "set", middle, "up")
        ip(switch, "link", "set", end, "up")
        wire = network.slow_wire(switch, middle, end, fault)
    with wire:
        ip(switch, "link", "set", last, "master", "rack-one", "up")
        ip(switch, "link", "set", last, "type", "bridge_slave", "learning", "off", "flood", "off")
        tc(switch, "qdisc", "add", "dev", port, "clsact")
        to = ["match", "ip", "dst", net.address(b)] if b else ["match", "u32", "0", "0"]
        tc(switch, "filter", "add", "dev", port, "ingress", "protocol", "ip", "u32", *to,
           "action", "mirred", "egress", "redirect", "dev", begin)  # fmt: skip
        yield


def close_ports(net, host):
    """Makes a host drop what opens a TCP connection to it."""
    namespace = net.namespace(host)
    ip(namespace, "link", "add", "hole", "up", "type", "veth", "peer", "name", "nowhere")
    ip(namespace, "link", "set", "nowhere", "up")
    tc(namespace, "qdisc", "add", "dev", "eth0", "clsact")
    # Of the flags of TCP, which are 33 bytes behind the IP header's start: SYN without ACK.
    tc(namespace, "filter", "add", "dev", "eth0", "ingress", "protocol", "ip", "u32",
       "match", "ip", "protocol", "6", "0xff", "match", "u8", "0x02", "0x12", "at", "33",
       "action", "mirred", "egress", "redirect", "dev", "hole")  # fmt: skip


def processes(net):
    """The processes that run on any of the hosts."""
    found = []
    for host in net.hosts:
        pids = subprocess.run(
            ["ip", "netns", "pids", net.namespace(host)], capture_output=True, text=True, check=True
        ).stdout.split()
        found += [(host, _command(pid)) for pid in pids]
    return found


def _command(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
    return text.replace("\0", " ")


def tc(namespace, *arguments):
    """Runs tc in a namespace."""
    _run("tc", "-n", namespace, *arguments)


def ip(namespace, *arguments):
    """Runs ip in a namespace."""
    _run("ip", "-n", namespace, *arguments)


def _run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
