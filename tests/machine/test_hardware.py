import os

import pytest

from easyddl.machine import cpu_list, hardware

CPUS = "sys/devices/system/cpu"


def two_packages(siblings="core_cpus_list", together="package_cpus_list"):
    """Two packages of four cores with two threads each: CPU 8 shares CPU 0's core."""
    files = {f"{CPUS}/online": "0-15\n", "proc/cpuinfo": "model name\t: A  Processor\nx : 1\n"}
    for cpu in range(16):
        core, package = cpu % 8, cpu % 8 // 4
        threads = f"{core},{core + 8}\n"
        everyone = f"{package * 4}-{package * 4 + 3},{package * 4 + 8}-{package * 4 + 11}\n"
        here = f"{CPUS}/cpu{cpu}"
        files[f"{here}/topology/{siblings}"] = threads
        files[f"{here}/topology/{together}"] = everyone
        for index, (level, kind, size, shared) in enumerate(
            [
                (1, "Data", "48K", threads),
                (1, "Instruction", "32K", threads),
                (2, "Unified", "2048K", threads),
                (3, "Unified", "36M", everyone),
            ]
        ):
            cache = f"{here}/cache/index{index}"
            files[f"{cache}/level"] = f"{level}\n"
            files[f"{cache}/type"] = f"{kind}\n"
            files[f"{cache}/size"] = f"{size}\n"
            files[f"{cache}/shared_cpu_list"] = shared
    for node in range(2):
        first = node * 4
        files[f"sys/devices/system/node/node{node}/cpulist"] = (
            f"{first}-{first + 3},{first + 8}-{first + 11}\n"
        )
    files["sys/devices/system/node/node2/cpulist"] = "\n"  # memory alone
    return files


@pytest.mark.parametrize(
    "names",
    [("core_cpus_list", "package_cpus_list"), ("thread_siblings_list", "core_siblings_list")],
)
def test_two_packages_with_two_threads_a_core(tree, names):
    found = hardware.facts(tree(two_packages(*names)))
    assert found["cores"] == [f"{core},{core + 8}" for core in range(8)]
    packages = ["0-3,8-11", "4-7,12-15"]
    assert found["packages"] == packages and found["numa_nodes"] == packages
    assert found["model"] == "A Processor"
    sizes = [(cache["level"], cache["kind"], cache["bytes"]) for cache in found["caches"]]
    assert sizes.count((1, "Data", 48 * 1024)) == 8
    assert sizes.count((2, "Unified", 2 * 2**20)) == 8
    assert sizes.count((3, "Unified", 36 * 2**20)) == 2
    assert found["caches"][-1]["cpus"] == packages[1]


def test_cpus_that_are_offline_do_not_count(tree):
    files = two_packages()
    files[f"{CPUS}/online"] = "0-3,8-9\n"
    root = tree(files)
    assert hardware.cores(root) == ({0, 8}, {1, 9}, {2}, {3})
    found = hardware.facts(root)
    assert found["packages"] == found["numa_nodes"] == ["0-3,8-9"]


@pytest.mark.parametrize(
    ("allowed", "want"),
    [
        (range(16), 8),
        (range(8), 8),  # one thread of each core
        ({0, 8}, 1),  # both threads of one core
        ({0, 8, 1}, 2),
        ({7}, 1),
        ({40, 41}, 2),  # CPUs that /sys does not know
    ],
)
def test_the_affinity_mask_limits_the_cores(tree, allowed, want):
    root = tree(two_packages())
    assert hardware.usable_physical_cores(root, allowed) == want


@pytest.mark.parametrize(
    ("quota", "want"), [("300000 100000", 3), ("350000 100000", 3), ("50000 100000", 1),
                        ("max 100000", 8), ("9900000 100000", 8)]
)  # fmt: skip
def test_the_quota_of_a_container_limits_the_cores(tree, quota, want):
    files = {
        **two_packages(),
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": "24 1 0:21 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/cpu.max": quota,
    }
    assert hardware.usable_physical_cores(tree(files), range(16)) == want


def test_the_cpus_of_a_cgroup_limit_the_cores(tree):
    files = {
        **two_packages(),
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": "24 1 0:21 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/cpuset.cpus.effective": "0-1,8-9",
    }
    assert hardware.usable_physical_cores(tree(files), range(16)) == 2


def test_a_sandbox_that_hides_the_cpus(tmp_path):
    allowed = os.sched_getaffinity(0)
    assert hardware.cores(tmp_path) == tuple(frozenset({cpu}) for cpu in sorted(allowed))
    found = hardware.facts(tmp_path)
    assert found["packages"] == found["numa_nodes"] == [cpu_list.render(allowed)]
    assert found["caches"] == [] and found["model"] == ""
    assert hardware.usable_physical_cores(tmp_path) == len(allowed)


def test_cpus_without_a_topology(tree):
    root = tree({f"{CPUS}/online": "0-3\n"})
    assert hardware.cores(root) == ({0}, {1}, {2}, {3})
    assert hardware.facts(root)["packages"] == ["0-3"]


def test_this_host():
    cpus = frozenset().union(*hardware.cores())
    assert os.sched_getaffinity(0) <= cpus
    packages = map(cpu_list.parse, hardware.facts()["packages"])
    assert frozenset().union(*packages) == cpus
    assert 1 <= hardware.usable_physical_cores() <= len(os.sched_getaffinity(0))


def gpu_files():
    files = {f"dev/nvidia{index}": "" for index in range(4)}
    files.update(dict.fromkeys(["dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-caps/x"], ""))
    for index in range(4):
        files[f"proc/driver/nvidia/gpus/0000:{index}1:00.0/information"] = (
            f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 12\nDevice Minor: \t {3 - index}\n"
        )
    return files


def test_gpus(tree):
    root = tree(gpu_files())
    assert hardware.gpus(root) == ["NVIDIA H100 80GB HBM3"] * 4


def test_a_container_with_one_gpu_of_several(tree):
    files = gpu_files()
    for index in (0, 1, 3):
        del files[f"dev/nvidia{index}"]
    assert hardware.gpus(tree(files)) == ["NVIDIA H100 80GB HBM3"]


@pytest.mark.parametrize(
    ("visible", "want"),
    [
        (None, 4),
        ("", 0),
        ("-1", 0),
        ("0", 1),
        ("2, 3", 2),
        ("0,7,1", 1),
        ("0,-1,1", 1),
        ("GPU-1a,MIG-2b", 2),
        ("NoDevFiles", 0),
    ],
)
def test_the_gpus_that_are_visible(tree, monkeypatch, visible, want):
    root = tree(gpu_files())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert hardware.gpu_count(root, visible) == want
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert hardware.gpu_count(root) == want


def test_no_gpu(tmp_path):
    assert hardware.gpus(tmp_path) == []
    assert hardware.gpu_count(tmp_path, "0,GPU-1") == 0


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8,10-11", {0, 1, 2, 3, 8, 10, 11}), ("5\n", {5}), ("", set()), ("(null)", set())],
)
def test_lists_of_cpus(text, cpus):
    assert cpu_list.parse(text) == cpus
    if cpus:
        assert cpu_list.render(cpus) == text.strip()


@pytest.mark.parametrize("text", ["0,", "0,,1", "0-", "-1", "0,3-1", "0-1-2", "1_0", "0;1"])
def test_what_is_no_list_of_cpus(text):
    assert cpu_list.parse(text) == set()
