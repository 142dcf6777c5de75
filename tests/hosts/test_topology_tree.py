import json
import os

import pytest

from easyddl.hosts import topology_tree
from easyddl.machine import hardware

L3 = 32 * 2**20


def host(name="h1", ranks=("0-3,8-11", "4-7,12-15"), first=0, rack=None, gpus=(), **facts):
    """A host of two packages, each with four cores of two threads."""
    packages = ["0-3,8-11", "4-7,12-15"]
    cores = [f"{core},{core + 8}" for core in range(8)]
    caches = [
        {"level": 1, "kind": kind, "bytes": 32768, "cpus": core}
        for kind in ("Data", "Instruction")
        for core in cores
    ]
    caches += [{"level": 2, "kind": "Unified", "bytes": 2**20, "cpus": core} for core in cores]
    caches += [{"level": 3, "kind": "Unified", "bytes": L3, "cpus": each} for each in packages]
    made = {
        "name": name,
        "rack": rack,
        "model": "A Processor",
        "cores": cores,
        "packages": packages,
        "numa_nodes": packages,
        "caches": caches,
        "gpus": list(gpus),
        "quota": None,
        "ranks": [{"rank": first + i, "cpus": cpus, "threads": 4} for i, cpus in enumerate(ranks)],
    }
    return {**made, **facts}


def test_one_host():
    gpus = ["NVIDIA H100", "NVIDIA H100"]
    text = topology_tree.render({"hosts": [host(gpus=gpus)]})
    assert text == "\n".join(
        [
            "2 ranks on 1 host, p:2x1x1x1",
            "└─ h1",
            "   ├─ A Processor, 2 packages, 8 cores, 16 CPUs, each core with L1d 32 KiB, "
            "L1i 32 KiB, L2 1 MiB",
            "   ├─ package 0: 4 cores, CPUs 0-3,8-11, L3 32 MiB",
            "   │  └─ rank 0: CPUs 0-3,8-11, 4 threads",
            "   ├─ package 1: 4 cores, CPUs 4-7,12-15, L3 32 MiB",
            "   │  └─ rank 1: CPUs 4-7,12-15, 4 threads",
            "   └─ 2 GPUs: NVIDIA H100",
        ]
    )


def test_alike_hosts_are_one_line_and_racks_hold_hosts():
    hosts = [host(f"h{i}", first=2 * i - 2, rack="ab"[i > 2]) for i in range(1, 5)]
    text = topology_tree.render({"hosts": hosts})
    assert text.splitlines()[:3] == [
        "8 ranks on 4 hosts in 2 racks, p:2x2x2x1",
        "├─ rack a",
        "│  └─ h[1-2], alike",
    ]
    assert "│     │  └─ ranks 0, 2: CPUs 0-3,8-11, 4 threads" in text
    assert "└─ rack b" in text and "   └─ h[3-4], alike" in text


def test_aisles_hold_racks():
    names = {"h1": "b/x", "h2": "b/y", "h3": "a/x", "h4": "b/x", "h5": "a/y"}
    hosts = [host(name, ranks=(), rack=rack) for name, rack in names.items()]
    lines = topology_tree.render({"hosts": hosts}).splitlines()
    groups = [line for line in lines if "rack" in line or "aisle" in line or "h[" in line]
    assert groups == [
        "0 ranks on 5 hosts in 4 racks",
        "├─ aisle b",
        "│  ├─ rack x",
        "│  │  └─ h[1,4], alike",
        "│  └─ rack y",
        "└─ aisle a",
        "   ├─ rack x",
        "   └─ rack y",
    ]
    deep = [host("h1", rack="hall/room/aisle/rack")]
    lines = topology_tree.render({"hosts": deep}).splitlines()
    assert [line.split("─ ")[1] for line in lines[1:5]] == [
        "group hall",
        "group room",
        "aisle aisle",
        "rack rack",
    ]


def test_hosts_that_differ_are_told_apart():
    other = host("h2", first=2, model="Another Processor")
    bound = host("h3", first=4, ranks=("0", "1"))
    lines = topology_tree.render({"hosts": [host(), other, bound, host("h4", first=6)]}).split("\n")
    assert [line for line in lines if line[3:4] == "h"] == ["├─ h[1,4], alike", "├─ h2", "└─ h3"]


def test_ranks_that_are_not_bound_belong_to_the_host():
    lines = topology_tree.render({"hosts": [host(ranks=("0-15", "0-15"))]}).splitlines()
    assert lines[3:] == [
        "   ├─ rank 0: CPUs 0-15, 4 threads",
        "   ├─ rank 1: CPUs 0-15, 4 threads",
        "   └─ 2 × package: 4 cores, L3 32 MiB each",
    ]


def test_numa_nodes_and_caches_within_a_package():
    nodes = ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]
    caches = [{"level": 3, "kind": "Unified", "bytes": L3, "cpus": core} for core in nodes]
    caches += [{"level": 2, "kind": "Unified", "bytes": 2**20, "cpus": str(i)} for i in range(16)]
    made = host(ranks=("2", "10"), numa_nodes=nodes, caches=caches)
    lines = topology_tree.render({"hosts": [made]}).splitlines()
    assert lines[2:] == [
        "   ├─ A Processor, 2 packages, 8 cores, 16 CPUs, each core with L2 1 MiB",
        "   ├─ package 0: 4 cores, CPUs 0-3,8-11",
        "   │  ├─ NUMA node 0: 2 cores, CPUs 0-1,8-9, L3 32 MiB",
        "   │  └─ NUMA node 1: 2 cores, CPUs 2-3,10-11, L3 32 MiB",
        "   │     ├─ rank 0: CPUs 2, 4 threads",
        "   │     └─ rank 1: CPUs 10, 4 threads",
        "   └─ package 1: 4 cores, CPUs 4-7,12-15",
        "      └─ 2 × NUMA node: 2 cores, L3 32 MiB each",
    ]


def test_caches_that_a_part_of_a_package_shares():
    caches = [
        {"level": 3, "kind": "Unified", "bytes": L3, "cpus": cpus}
        for cpus in ("0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15")
    ]
    text = topology_tree.render({"hosts": [host(ranks=("0",), caches=caches)]})
    assert "   │  ├─ L3 32 MiB: 2 cores, CPUs 0-1,8-9\n   │  │  └─ rank 0: CPUs 0," in text
    assert "   │  └─ L3 32 MiB: 2 cores, CPUs 2-3,10-11\n" in text
    assert text.endswith("      └─ 2 × L3 32 MiB: 2 cores each")


def test_a_sandbox_and_a_container():
    made = {
        "name": "pod", "model": "", "cores": ["0", "1"], "packages": ["0-1"], "numa_nodes": ["0-1"],
        "caches": [], "gpus": [""], "quota": 1.5, "ranks": [{"rank": 0, "cpus": "0-1"}],
    }  # fmt: skip
    assert topology_tree.render({"hosts": [made]}) == "\n".join(
        [
            "1 rank on 1 host, p:1x1x1x1",
            "└─ pod",
            "   ├─ 1 package, 2 cores, limited to 1.5 CPUs by its cgroup",
            "   ├─ package 0: 2 cores, CPUs 0-1",
            "   │  └─ rank 0: CPUs 0-1",
            "   └─ 1 GPU",
        ]
    )


@pytest.mark.parametrize(
    ("ranks", "racks", "want"),
    [
        ([6, 6], None, "p:6x2x1x1"),
        ([4] * 6, "aabbcc", "p:4x2x3x1"),
        ([1], "a", "p:1x1x1x1"),
        ([4, 3], None, None),
        ([4, 4, 4], "aab", None),
        ([2] * 4, ["a/x", "a/y", "b/x", "b/y"], "p:2x1x2x2"),
        ([2] * 3, ["a/x", "a/y", "b/x"], None),
    ],
)
def test_ibms_notation(ranks, racks, want):
    hosts = [host(ranks=("0",) * count, rack=racks and racks[i]) for i, count in enumerate(ranks)]
    assert topology_tree.notation({"hosts": hosts}) == want
    title = topology_tree.render({"hosts": hosts}).splitlines()[0]
    assert ("p:" in title) == (want is not None)


def test_this_host():
    facts = json.loads(json.dumps(hardware.facts()))
    cpus = sorted(os.sched_getaffinity(0))
    rank = {"rank": 0, "cpus": ",".join(map(str, cpus))}
    text = topology_tree.render({"hosts": [{**facts, "name": "me", "rack": None, "ranks": [rank]}]})
    assert "└─ me" in text and "rank 0: CPUs" in text
