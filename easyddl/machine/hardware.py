"""The CPUs, caches and GPUs of this host, read from the kernel's files in /sys, /proc and /dev.

The kernel's documentation describes the files: ABI/stable/sysfs-devices-system-cpu and
ABI/stable/sysfs-devices-node.
"""

import math
import os
import pathlib
import re

from easyddl.machine import cgroup, cpu_list
from easyddl.machine.kernel_file import read_text

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def cores(root="/"):
    """Returns the CPUs of each physical core. CPUs are the kernel's logical CPUs.

    If the kernel does not report which CPUs share a core, as in some sandboxes, each CPU counts as
    a core.

    Args:
        root: String. The folder that holds `proc` and `sys`.

    Returns:
        Tuple of frozen sets.
    """
    return _groups(*_online(root), "core_cpus_list", "thread_siblings_list", alone=True)


def facts(root="/"):
    """Returns the hardware of this host as JSON data: entries of a host in `topology_tree`.

    Args:
        root: String. The folder that holds `proc`, `sys` and `dev`.

    Returns:
        Dict that JSON can represent: the `model` of the processor, which may be empty; the CPUs of
        the `cores`, the `packages` (sockets), and the `numa_nodes` that have CPUs; the `caches`,
        from the first level outwards; the models of the `gpus`; and the `quota` of CPUs. All
        CPUs are one package if the kernel does not report packages. Unknown sizes are 0.
    """
    folder, cpus = _online(root)
    packages = _groups(folder, cpus, "package_cpus_list", "core_siblings_list", alone=False)
    quota = cgroup.cpu_quota(root)
    return {
        "model": _model(root),
        "cores": [cpu_list.render(core) for core in cores(root)],
        "packages": [cpu_list.render(package) for package in packages],
        "numa_nodes": [cpu_list.render(node) for node in _numa_nodes(root, cpus)],
        "caches": [
            {"level": level, "kind": kind, "bytes": size, "cpus": cpu_list.render(shared)}
            for level, kind, size, shared in _caches(folder, cpus)
        ],
        "gpus": gpus(root),
        "quota": quota and quota.cpus,
    }


def usable_physical_cores(root="/", allowed=None):
    """Returns how many physical cores this process may use, at least 1.

    The affinity mask of the process and the CPU quota of its cgroup limit the number.

    Args:
        root: String. The folder that holds `proc` and `sys`.
        allowed: Set of the CPUs that the process may run on; by default its affinity mask.
    """
    allowed = _allowed() if allowed is None else frozenset(allowed)
    inside = cgroup.cpuset(root)
    if inside is not None and allowed & inside:
        allowed &= inside
    count = sum(1 for core in cores(root) if core & allowed) or len(allowed)
    quota = cgroup.cpu_quota(root)
    if quota is not None:
        count = min(count, math.floor(quota.cpus))
    return max(1, count)


def gpus(root="/"):
    """Returns the NVIDIA GPUs that have a device file on this host or in this container.

    Args:
        root: String. The folder that holds `proc` and `dev`.

    Returns:
        List of the names of their models, empty if unknown, in the order of their device files.
    """
    indices = _numbered(pathlib.Path(root, "dev"), "nvidia")
    models = {}
    for path in pathlib.Path(root, "proc/driver/nvidia/gpus").glob("*/information"):
        facts = dict(re.findall(r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", read_text(path), re.MULTILINE))
        if facts.get("Device Minor", "").isdigit():
            models[int(facts["Device Minor"])] = facts.get("Model", "")
    return [models.get(index, "") for index in sorted(indices)]


def gpu_count(root="/", visible=None):
    """Returns how many NVIDIA GPUs this process may use.

    Args:
        root: String. The folder that holds `proc` and `dev`.
        visible: String. The value of CUDA_VISIBLE_DEVICES. Defaults to the environment variable.
    """
    count = len(gpus(root))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    if visible is None:
        return count
    used = 0
    for name in (part.strip() for part in visible.split(",")):
        # CUDA ignores a GPU that does not exist and all GPUs listed after it. UUIDs begin with GPU-
        # or MIG-.
        exists = int(name) < count if name.isdigit() else name.startswith(("GPU-", "MIG-"))
        if not exists or count == 0:
            break
        used += 1
    return used


def _online(root):
    """Returns the folder of all CPUs, and the frozen set of those that are online."""
    folder = pathlib.Path(root, _CPUS)
    cpus = cpu_list.parse(read_text(folder / "online")) or _numbered(folder, "cpu") or _allowed()
    return folder, cpus


def _groups(folder, cpus, name, older_name, alone):
    """Returns the sets of CPUs that share a core or a package.

    Args:
        folder: `pathlib.Path`. The folder of all CPUs.
        cpus: Frozen set of the CPUs that are online.
        name: String. The file in the folder `topology` of a CPU.
        older_name: String. The file's name in kernels before 5.3.
        alone: Boolean. Whether each CPU without such a file forms a separate set. Otherwise all
            of them form one set.
    """
    groups, rest = set(), set()
    for cpu in cpus:
        topology = folder / f"cpu{cpu}" / "topology"
        text = read_text(topology / name) or read_text(topology / older_name)
        found = cpu_list.parse(text) & cpus
        if found:
            groups.add(found)
        else:
            rest.add(cpu)
    groups.update([frozenset([cpu]) for cpu in rest] if alone else [frozenset(rest)] * bool(rest))
    return tuple(sorted(groups, key=min))


def _numa_nodes(root, cpus):
    folder = pathlib.Path(root, _NODES)
    nodes = [
        cpu_list.parse(read_text(folder / f"node{node}" / "cpulist")) & cpus
        for node in sorted(_numbered(folder, "node"))
    ]
    return tuple(node for node in nodes if node) or (cpus,)


def _caches(folder, cpus):
    """Returns the level, the kind, the bytes and the CPUs of each cache, by level."""
    caches = set()
    for cpu in cpus:
        for path in (folder / f"cpu{cpu}" / "cache").glob("index*"):
            shared = cpu_list.parse(read_text(path / "shared_cpu_list")) & cpus
            level = read_text(path / "level")
            if shared and level.isdigit():
                kind = read_text(path / "type")
                caches.add((int(level), kind, _bytes(read_text(path / "size")), shared))
    return sorted(caches, key=lambda cache: (*cache[:2], min(cache[3])))


def _bytes(text):
    """Returns the number of bytes of a cache's size, such as `32768K`."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(match[1]) * _UNITS[match[2]] if match else 0


def _model(root):
    """Returns the name of the processor. Kernels for aarch64 do not report it."""
    text = read_text(pathlib.Path(root, "proc/cpuinfo"))
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return " ".join(match[1].split()) if match else ""


def _numbered(folder, prefix):
    """Returns the numbers n of the entries of a folder that are named `{prefix}{n}`."""
    try:
        names = os.listdir(folder)
    except OSError:
        return frozenset()
    matches = (re.fullmatch(rf"{prefix}(\d+)", name) for name in names)
    return frozenset(int(match[1]) for match in matches if match)


def _allowed():
    return frozenset(os.sched_getaffinity(0))
