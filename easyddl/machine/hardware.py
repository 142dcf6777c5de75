"""The CPUs, caches and GPUs of this host, read from the kernel's files in /sys, /proc and /dev.

The kernel's documentation describes the files: ABI/stable/sysfs-devices-system-cpu and
ABI/stable/sysfs-devices-node.
"""

import dataclasses
import math
import os
import pathlib
import re

from easyddl.machine import cgroup, cpu_list
from easyddl.machine.kernel_file import read_text

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclasses.dataclass(frozen=True)
class Cache:
    """A cache.

    Attributes:
        level: Integer, from 1.
        kind: String. `"Data"`, `"Instruction"` or `"Unified"`.
        bytes: Integer. The size; 0 if it is unknown.
        cpus: Frozen set of the CPUs that share the cache.
    """

    level: int
    kind: str
    bytes: int
    cpus: frozenset


@dataclasses.dataclass(frozen=True)
class Hardware:
    """The CPUs and caches of a host. CPUs are the kernel's logical CPUs.

    Attributes:
        cores: Tuple of frozen sets: the CPUs of each physical core.
        packages: Tuple of frozen sets: the CPUs of each package (socket).
        numa_nodes: Tuple of frozen sets: the CPUs of each NUMA node that has CPUs.
        caches: Tuple of `Cache`, from the first level outwards.
        model: String. The name of the processor; empty if it is unknown.
    """

    cores: tuple
    packages: tuple
    numa_nodes: tuple
    caches: tuple
    model: str

    @property
    def cpus(self):
        """Frozen set of all CPUs that are online."""
        return frozenset().union(*self.cores)


@dataclasses.dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU.

    Attributes:
        index: Integer. The number of the device file, such as 0 for `/dev/nvidia0`.
        model: String. The name of the GPU; empty if it is unknown.
    """

    index: int
    model: str


def read(root="/"):
    """Reads the CPUs and caches of this host.

    If the kernel does not report which CPUs share a core or a package, as in some sandboxes, each
    CPU counts as a core, and all CPUs as one package.

    Args:
        root: String. The folder that holds `proc` and `sys`.

    Returns:
        `Hardware`.
    """
    folder = pathlib.Path(root, _CPUS)
    cpus = cpu_list.parse(read_text(folder / "online")) or _numbered(folder, "cpu") or _allowed()
    return Hardware(
        cores=_groups(folder, cpus, "core_cpus_list", "thread_siblings_list", alone=True),
        packages=_groups(folder, cpus, "package_cpus_list", "core_siblings_list", alone=False),
        numa_nodes=_numa_nodes(root, cpus),
        caches=_caches(folder, cpus),
        model=_model(root),
    )


def facts(root="/"):
    """Returns the hardware of this host as JSON data: entries of a host in `topology_tree`.

    Args:
        root: String. The folder that holds `proc`, `sys` and `dev`.

    Returns:
        Dict that JSON can represent.
    """
    found, quota = read(root), cgroup.cpu_quota(root)
    return {
        "model": found.model,
        "cores": [cpu_list.render(core) for core in found.cores],
        "packages": [cpu_list.render(package) for package in found.packages],
        "numa_nodes": [cpu_list.render(node) for node in found.numa_nodes],
        "caches": [
            {
                "level": cache.level,
                "kind": cache.kind,
                "bytes": cache.bytes,
                "cpus": cpu_list.render(cache.cpus),
            }
            for cache in found.caches
        ],
        "gpus": [gpu.model for gpu in gpus(root)],
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
    cores = sum(1 for core in read(root).cores if core & allowed) or len(allowed)
    quota = cgroup.cpu_quota(root)
    if quota is not None:
        cores = min(cores, math.floor(quota.cpus))
    return max(1, cores)


def gpus(root="/"):
    """Returns the NVIDIA GPUs that have a device file on this host or in this container.

    Args:
        root: String. The folder that holds `proc` and `dev`.

    Returns:
        List of `Gpu`, in the order of their device files.
    """
    indices = _numbered(pathlib.Path(root, "dev"), "nvidia")
    models = {}
    for path in pathlib.Path(root, "proc/driver/nvidia/gpus").glob("*/information"):
        facts = dict(re.findall(r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", read_text(path), re.MULTILINE))
        if facts.get("Device Minor", "").isdigit():
            models[int(facts["Device Minor"])] = facts.get("Model", "")
    return [Gpu(index, models.get(index, "")) for index in sorted(indices)]


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
    caches = set()
    for cpu in cpus:
        for path in (folder / f"cpu{cpu}" / "cache").glob("index*"):
            shared = cpu_list.parse(read_text(path / "shared_cpu_list")) & cpus
            level = read_text(path / "level")
            if shared and level.isdigit():
                kind = read_text(path / "type")
                caches.add(Cache(int(level), kind, _bytes(read_text(path / "size")), shared))
    return tuple(sorted(caches, key=lambda cache: (cache.level, cache.kind, min(cache.cpus))))


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
