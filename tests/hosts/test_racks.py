import pathlib
import subprocess

import pytest

from easyddl.hosts import host_list, racks

SWITCHES = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=dev[0-1],gpu05
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=dev[2-3]
SwitchName=s2 Level=1 LinkSpeed=1 Nodes=dev[0-3],gpu05 Switches=s[0-1]
SwitchName=s3 Level=0 LinkSpeed=1 Nodes=(null)
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("EASYDDL_RACKS", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["h1", "h2", "h3", "h7"], "h[1-3,7]"),
        (["h1"], "h1"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n9", "n10"], "n[9-10]"),
        (["a", "b"], "a,b"),
        (["h1.site", "h2.site", "login"], "h[1-2].site,login"),
        (["h2", "h1"], "h[2,1]"),
        (["", "1"], "[,1]"),
    ],
)
def test_names_are_folded(names, text):
    assert host_list.fold(names) == text
    if all(names):
        assert host_list.expand_names(text) == names


@pytest.mark.parametrize("text", ["h[1-100001]", "h[1-1000]-[1-1000]", "h[1-99999][1-99999][1-2]"])
def test_a_list_of_too_many_hosts_is_refused_at_once(text):
    with pytest.raises(ValueError, match=r"may have 100000 hosts at most"):
        host_list.expand_names(text)


@pytest.mark.parametrize("held", ["a", "1-a", "-2", "1-", "", "4-1", "1" * 5000])
def test_what_is_no_range_of_numbers_is_refused(held):
    with pytest.raises(ValueError, match=r"not a range of numbers.* Received: 'h\[") as error:
        host_list.expand_names(f"m1,h[{held}]")
    assert "int()" not in str(error.value)


def test_the_switches_of_slurm():
    want = {"dev0": "s0", "dev1": "s0", "gpu05": "s0", "dev2": "s1", "dev3": "s1"}
    assert racks.of_topology(SWITCHES) == want


def test_the_blocks_of_slurm():
    text = "BlockName=b0 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b1 Nodes=n3\n"
    assert racks.of_topology(text) == {"n1": "b0", "n2": "b0", "n3": "b1"}


@pytest.mark.parametrize("text", ["", "topology.conf file is empty\n", "slurm_load_topo error: x"])
def test_slurm_without_a_topology(text):
    assert racks.of_topology(text) == {}


def scontrol(tmp_path, monkeypatch, script):
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_slurm_is_asked_in_its_jobs_alone(tmp_path, monkeypatch):
    (tmp_path / "topology").write_text(SWITCHES)
    scontrol(tmp_path, monkeypatch, f'[ "$*" = "show topology" ] && cat {tmp_path}/topology')
    assert racks.of_hosts(["dev0", "dev2"]) is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert racks.of_hosts(["dev0", "dev2.cluster", "dev1"]) == ["s0", "s1", "s0"]
    assert racks.of_hosts(["dev0", "elsewhere"]) is None


def test_a_scontrol_that_fails_or_hangs(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    scontrol(tmp_path, monkeypatch, "echo SwitchName=s0 Level=0 Nodes=h; exit 1")
    assert racks.of_hosts(["h"]) is None
    monkeypatch.setattr(racks, "_SECONDS", 0.2)
    scontrol(tmp_path, monkeypatch, "exec sleep 60")
    assert racks.of_hosts(["h"]) is None
    pathlib.Path(tmp_path / "scontrol").unlink()
    assert racks.of_hosts(["h"]) is None


def test_racks_that_the_user_names(monkeypatch):
    def run(*_, **__):
        raise AssertionError("scontrol is asked")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("EASYDDL_RACKS", "x, x,y")
    assert racks.of_hosts(["a", "b", "c"]) == ["x", "x", "y"]
    assert racks.of_hosts(["a", "b"]) is None
    monkeypatch.setenv("EASYDDL_RACKS", "x,,y")
    assert racks.of_hosts(["a", "b", "c"]) is None
    monkeypatch.setenv("EASYDDL_RACKS", "u/x, u / y,v/x")
    assert racks.of_hosts(["a", "b", "c"]) == ["u/x", "u/y", "v/x"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x,y", "must name a rack for each of the 3 hosts"),
        ("x,y,", "must name a rack for each of the 3 hosts"),
        ("a/x,a/,b/y", "must name a rack for each of the 3 hosts"),
        ("a/x,/y,b/y", "must name a rack for each of the 3 hosts"),
        ("a/x,a/y,z", "must name all racks in as many parts"),
    ],
)
def test_racks_that_are_wrong(text, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        racks.parse(text, 3)
    assert repr(text) in str(caught.value)
