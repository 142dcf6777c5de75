"""Judgements of `easyddl doctor` on hosts, from constructed facts."""

import copy
import itertools
import threading

import pytest

from easyddl.doctor import (
    hardware_facts,
    judge_hosts,
    judge_software,
    limits,
    memory,
    network,
    software,
)
from easyddl.doctor.finding import Level
from easyddl.doctor.link_table import Link

FACTS = {
    "hostname": "h1",
    "software": {
        "python": "3.11.7",
        "executable": "/usr/bin/python3",
        "easyddl": "0.1.0",
        "easyddl_files": "abc",
        "keras": "3.15.1",
        "backend": "tensorflow",
        "backend_version": "2.21.0",
        "mpi4py": "4.1.2",
        "mpi": "MPICH 5.0.2",
        "mpi_error": None,
        "nccl": None,
        "nvidia_driver": None,
        "kernel": "6.1",
    },
    "hardware": {
        "model": "A processor",
        "cores": ["0", "1"],
        "gpus": [],
        "cpu_features": ["avx", "avx2"],
        "usable_cpus": 2,
        "memory": 1 << 34,
    },
    "limits": {
        "memlock": None,
        "nofile": 4096,
        "shared_memory": 1 << 30,
        "memfd_error": None,
        "cpu_quota": None,
    },
    "interfaces": [
        {"name": "eth0", "address": "10.0.0.1", "mask": "255.0.0.0", "mtu": 1500, "speed": None}
    ],
}


def facts_of(count, section=None, **changes):
    """The facts of some equal hosts, of which the second has something else."""
    found = {f"h{i + 1}": copy.deepcopy(FACTS) for i in range(count)}
    if section:
        found["h2"][section].update(changes)
    return found


def bad(findings):
    return [(each.level, each.hosts) for each in findings if each.level is not Level.FINE]


ERROR, WARNING = Level.ERROR, Level.WARNING


@pytest.mark.parametrize(
    ("section", "changes", "level", "word"),
    [
        ("software", {"easyddl": "9.9"}, ERROR, "9.9"),
        ("software", {"easyddl_files": "xyz"}, ERROR, "xyz"),
        ("software", {"keras": "3.5.0"}, ERROR, "3.5.0"),
        ("software", {"backend": "jax"}, ERROR, "jax"),
        ("software", {"backend_version": "2.16.1"}, ERROR, "2.16.1"),
        ("software", {"mpi": "Open MPI v5.0.8"}, ERROR, "Open MPI v5.0.8"),
        ("software", {"nccl": "2.30"}, ERROR, "2.30"),
        ("software", {"python": "3.12.0"}, WARNING, "3.12.0"),
        ("software", {"nvidia_driver": "580.1"}, WARNING, "580.1"),
        ("hardware", {"model": "Another"}, WARNING, "Another"),
        ("hardware", {"cpu_features": ["avx"]}, WARNING, "no avx2"),
        ("hardware", {"cpu_features": ["avx", "avx2", "avx512f"]}, WARNING, "avx512f"),
        ("hardware", {"usable_cpus": 1}, WARNING, "usable CPUs"),
        ("hardware", {"gpus": ["H100", ""]}, WARNING, "H100, GPU"),
        # What a host lacks.
        ("software", {"easyddl": None}, ERROR, "no easyddl"),
        ("software", {"keras": None}, ERROR, "no Keras"),
        ("software", {"mpi4py": None}, ERROR, "no mpi4py"),
        ("software", {"backend_version": None}, ERROR, "no tensorflow"),
        (
            "software",
            {"mpi": None, "mpi_error": "libmpi.so.12: cannot open"},
            ERROR,
            "libmpi.so.12",
        ),
    ],
)
def test_the_host_that_differs_is_named(section, changes, level, word):
    findings = judge_software.judge(facts_of(4, section, **changes))
    assert bad(findings) == [(level, ("h2",))]
    assert word in findings[0].message and findings[0].advice
    assert "3 hosts have" in findings[0].message or None in changes.values()


def test_equal_hosts_are_fine():
    assert bad(judge_software.judge(facts_of(3))) == []
    assert judge_software.judge({}) == []


def limits_of(gpus=(), mpi="MPICH 5.0.2", **changes):
    found = facts_of(3, "limits", **changes)
    found["h2"]["software"]["mpi"] = mpi
    found["h2"]["hardware"]["gpus"] = list(gpus)
    return judge_hosts.limits(found, dict.fromkeys(found, 12))


def clocks_of(offset, doubt):
    return judge_hosts.clocks({"h1": (0.0, 1e-4), "h2": (offset, doubt), "h3": (1e-3, 1e-4)})


def names_of(name, *answers):
    found = {f"h{i}": {name: answer} for i, answer in enumerate(answers, 1)}
    return judge_hosts.names(found, facts_of(2))


def memory_of(**changes):
    usual = {"copy": 20e9, "latency": 100e-9}
    return judge_hosts.memory({"h1": usual, "h2": {**usual, **changes}, "h3": usual})


def devices_of(mtu):
    facts = facts_of(3)
    for number, found in enumerate(facts.values()):
        found["interfaces"][0]["address"] = f"10.0.0.{number}"
    facts["h2"]["interfaces"][0]["mtu"] = mtu
    links = {
        (a, b): Link(interface_address=facts[a]["interfaces"][0]["address"])
        for a, b in itertools.permutations(facts, 2)
    }
    return judge_hosts.devices(facts, links)


GOOD = {"addresses": ["10.0.0.1"], "error": None, "seconds": 0.0}
UNKNOWN = {"addresses": [], "error": "Name or service not known", "seconds": 0.0}
LOOPBACK = {**GOOD, "addresses": ["127.0.1.1"]}


@pytest.mark.parametrize(
    ("findings", "expected", "word"),
    [
        (limits_of(), [], "suffice"),
        (limits_of(memfd_error="Function not implemented"), [(ERROR, ("h2",))], "share memory"),
        (limits_of(nofile=256), [(WARNING, ("h2",))], "256 files"),
        (
            limits_of(shared_memory=64 << 20),
            [(WARNING, ("h2",))],
            "12 ranks of MPICH need 72.8 MiB",
        ),
        (limits_of(shared_memory=73 << 20), [], "suffice"),
        (limits_of(mpi="Open MPI v5.0.11", shared_memory=64 << 20), [], "suffice"),
        # InfiniBand needs it, which jobs on GPUs use.
        (limits_of(memlock=1 << 16), [], "suffice"),
        (limits_of(["H100"], memlock=1 << 16), [(WARNING, ("h2",))], "64 KiB"),
        # A container that sees more CPUs than it may use.
        (limits_of(cpu_quota=1.5), [], "1.5 CPUs"),
        (clocks_of(-3.0, 1e-4), [(WARNING, ("h2",))], "behind"),
        (clocks_of(-3.0, 3.0), [], "agree"),  # a slow answer explains the offset
        (names_of("h1", GOOD, GOOD), [], "every host"),
        (names_of("h9", UNKNOWN, UNKNOWN), [(WARNING, ("h1", "h2"))], "not known"),
        (names_of("h1", LOOPBACK, GOOD), [(WARNING, ("h1",))], "127.0.1.1"),
        (devices_of(1500), [], "1500"),
        (devices_of(9000), [(WARNING, ("h2",))], "9000"),
        (memory_of(copy=5e9), [(WARNING, ("h2",))], "5 GB/s"),
        (memory_of(latency=900e-9), [(WARNING, ("h2",))], "900 ns"),
        (memory_of(copy=None, latency=None), [], "20 GB/s"),
    ],
)
def test_findings_on_hosts(findings, expected, word):
    assert bad(findings) == expected
    assert word in findings[0].message


def test_a_host_alone_may_have_its_name_on_the_loopback_and_any_memory():
    assert bad(names_of("h1", LOOPBACK)) == []
    assert bad(judge_hosts.memory({"h1": {"copy": 20e9, "latency": 100e-9}})) == []


def test_the_facts_of_this_host_have_the_right_form():
    """The constructed facts above are those that an agent reports."""
    assert set(software.facts()) == set(FACTS["software"])
    assert set(limits.facts()) == set(FACTS["limits"])
    assert set(hardware_facts.facts()) >= set(FACTS["hardware"])
    for interface in network.interfaces():
        assert set(interface) == set(FACTS["interfaces"][0])
    found = network.look_up(["localhost", "no-such-host.invalid"])
    assert found["localhost"]["addresses"] == ["127.0.0.1"]
    assert found["no-such-host.invalid"]["error"]


def test_names_are_looked_up_at_the_same_time(monkeypatch):
    """A name server that does not answer takes many seconds for each name."""
    waiting = threading.Barrier(8)

    def getaddrinfo(name, *_):
        waiting.wait(30)
        raise OSError(f"no answer for {name}")

    monkeypatch.setattr(network.socket, "getaddrinfo", getaddrinfo)
    names = [f"h{number}" for number in range(8)]
    found = network.look_up(names)
    assert {name: each["error"] for name, each in found.items()} == {
        name: f"no answer for {name}" for name in names
    }


def test_memory_is_measured():
    measured = memory.measure(rounds=1)
    if measured["copy"] is not None:  # there is memory enough
        assert 1e8 < measured["copy"] < 1e13
        assert 0 <= measured["latency"] < 1e-4


@pytest.mark.parametrize(
    ("variable", "settings", "backend"),
    [("jax", None, "jax"), ("", '{"backend": "torch"}', "torch"), ("", "{", "tensorflow")],
)
def test_the_backend_is_that_which_keras_takes(variable, settings, backend, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", variable)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    if settings:
        (tmp_path / "keras.json").write_text(settings)
    assert software.facts()["backend"] == backend
