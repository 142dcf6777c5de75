"""Judgements of `easyddl doctor` on hosts, from constructed facts."""

import copy

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


@pytest.mark.parametrize(
    ("section", "changes", "level", "word"),
    [
        ("software", {"easyddl": "9.9"}, Level.ERROR, "9.9"),
        ("software", {"easyddl_files": "xyz"}, Level.ERROR, "xyz"),
        ("software", {"keras": "3.5.0"}, Level.ERROR, "3.5.0"),
        ("software", {"backend": "jax"}, Level.ERROR, "jax"),
        ("software", {"backend_version": "2.16.1"}, Level.ERROR, "2.16.1"),
        ("software", {"mpi": "Open MPI v5.0.8"}, Level.ERROR, "Open MPI v5.0.8"),
        ("software", {"nccl": "2.30"}, Level.ERROR, "2.30"),
        ("software", {"python": "3.12.0"}, Level.WARNING, "3.12.0"),
        ("software", {"nvidia_driver": "580.1"}, Level.WARNING, "580.1"),
        ("hardware", {"model": "Another"}, Level.WARNING, "Another"),
        ("hardware", {"cpu_features": ["avx"]}, Level.WARNING, "no avx2"),
        ("hardware", {"cpu_features": ["avx", "avx2", "avx512f"]}, Level.WARNING, "avx512f"),
        ("hardware", {"usable_cpus": 1}, Level.WARNING, "usable CPUs"),
        ("hardware", {"gpus": ["H100", ""]}, Level.WARNING, "H100, GPU"),
    ],
)
def test_the_host_that_differs_is_named(section, changes, level, word):
    findings = judge_software.judge(facts_of(4, section, **changes))
    assert bad(findings) == [(level, ("h2",))]
    assert word in findings[0].message
    assert "3 hosts have" in findings[0].message
    assert findings[0].advice


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"easyddl": None}, "no easyddl"),
        ({"keras": None}, "no Keras"),
        ({"mpi4py": None}, "no mpi4py"),
        ({"backend_version": None}, "no tensorflow"),
        ({"mpi": None, "mpi_error": "libmpi.so.12: cannot open"}, "libmpi.so.12"),
    ],
)
def test_what_a_host_lacks_is_an_error(changes, word):
    findings = judge_software.judge(facts_of(3, "software", **changes))
    assert bad(findings) == [(Level.ERROR, ("h2",))]
    assert word in findings[0].message


def test_equal_hosts_are_fine():
    assert bad(judge_software.judge(facts_of(3))) == []
    assert bad(judge_hosts.limits(facts_of(3))) == []
    assert judge_software.judge({}) == []


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({"memfd_error": "Function not implemented"}, Level.ERROR),
        ({"nofile": 256}, Level.WARNING),
        ({"shared_memory": 1 << 20}, Level.WARNING),
    ],
)
def test_a_low_limit_is_named(changes, level):
    assert bad(judge_hosts.limits(facts_of(3, "limits", **changes))) == [(level, ("h2",))]


def test_little_locked_memory_matters_with_gpus_alone():
    found = facts_of(2, "limits", memlock=1 << 16)
    assert bad(judge_hosts.limits(found)) == []
    found["h2"]["hardware"]["gpus"] = ["H100"]
    assert bad(judge_hosts.limits(found)) == [(Level.WARNING, ("h2",))]


def test_a_container_that_sees_more_cpus_than_it_may_use_is_told():
    findings = judge_hosts.limits(facts_of(2, "limits", cpu_quota=1.5))
    assert bad(findings) == []
    assert "1.5 CPUs" in findings[0].message


def test_a_wrong_clock_is_named():
    offsets = {"h1": (0.0, 1e-4), "h2": (-3.0, 1e-4), "h3": (1e-3, 1e-4)}
    findings = judge_hosts.clocks(offsets)
    assert bad(findings) == [(Level.WARNING, ("h2",))]
    assert "behind" in findings[0].message
    # An offset that a slow answer explains is no fault.
    assert bad(judge_hosts.clocks({**offsets, "h2": (-3.0, 3.0)})) == []


def test_names_that_are_not_known_or_are_wrong_are_told():
    good = {"addresses": ["10.0.0.1"], "error": None, "seconds": 0.0}
    unknown = {"addresses": [], "error": "Name or service not known", "seconds": 0.0}
    wrong = {**good, "addresses": ["127.0.1.1"]}
    facts = facts_of(2)
    assert bad(judge_hosts.names({"h1": {"h1": good}, "h2": {"h1": good}}, facts)) == []
    found = judge_hosts.names({"h1": {"h9": unknown}, "h2": {"h9": unknown}}, facts)
    assert bad(found) == [(Level.WARNING, ("h1", "h2"))]
    found = judge_hosts.names({"h1": {"h1": wrong}, "h2": {"h1": good}}, facts)
    assert bad(found) == [(Level.WARNING, ("h1",))]
    assert "127.0.1.1" in found[0].message
    # A host alone may well have its name on the loopback.
    assert bad(judge_hosts.names({"h1": {"h1": wrong}}, facts)) == []


def test_another_mtu_is_named():
    facts = facts_of(3)
    for number, found in enumerate(facts.values()):
        found["interfaces"][0]["address"] = f"10.0.0.{number}"
    links = {
        (a, b): Link(interface_address=facts[a]["interfaces"][0]["address"])
        for a in facts
        for b in facts
        if a != b
    }
    assert bad(judge_hosts.devices(facts, links)) == []
    facts["h2"]["interfaces"][0]["mtu"] = 9000
    assert bad(judge_hosts.devices(facts, links)) == [(Level.WARNING, ("h2",))]


def test_slow_memory_is_named():
    usual = {"copy": 20e9, "latency": 100e-9}
    measured = {"h1": usual, "h2": {**usual, "copy": 5e9}, "h3": usual}
    assert bad(judge_hosts.memory(measured)) == [(Level.WARNING, ("h2",))]
    measured["h2"] = {**usual, "latency": 900e-9}
    assert bad(judge_hosts.memory(measured)) == [(Level.WARNING, ("h2",))]
    measured["h2"] = {"copy": None, "latency": None}
    assert bad(judge_hosts.memory(measured)) == []
    assert bad(judge_hosts.memory({"h1": usual})) == []


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
