"""The CPU limits of this process's cgroup, which a container or a batch system sets.

The kernel's documentation describes the files: admin-guide/cgroup-v2 (`cpu.max`,
`cpuset.cpus.effective`) and, for version 1, scheduler/sched-bwc (`cpu.cfs_quota_us`).
"""

import dataclasses
import pathlib

from easyddl.machine import cpu_list
from easyddl.machine.kernel_file import read_text

_MOUNT = pathlib.PurePosixPath("/sys/fs/cgroup")


@dataclasses.dataclass(frozen=True)
class CpuQuota:
    """A limit of the CPU time that all processes of a cgroup use together.

    Attributes:
        cpus: Float. Seconds of CPU time per second: 1.5 means one and a half CPUs.
        group: String that is equal in all processes of a host that share the quota.
    """

    cpus: float
    group: str


def cpu_quota(root="/"):
    """Returns the smallest CPU quota of this process's cgroup and its ancestors.

    Args:
        root: String. The folder that holds `proc` and `sys`.

    Returns:
        `CpuQuota`; `None` without a quota.
    """
    # A time and a period, as in `150000 100000`. Other values than numbers, and -1, are no quota.
    names = {2: ("cpu.max",), 1: ("cpu.cfs_quota_us", "cpu.cfs_period_us")}
    quotas = []
    for version, folder in _folders("cpu", root):
        cpus = _ratio(" ".join(read_text(folder / name) for name in names[version]))
        if cpus is not None:
            quotas.append(CpuQuota(cpus, _identity(folder)))
    return min(quotas, key=lambda quota: quota.cpus, default=None)


def cpuset(root="/"):
    """Returns the CPUs that this process's cgroup may run on.

    Args:
        root: String. The folder that holds `proc` and `sys`.

    Returns:
        Frozen set of integers; `None` if the cgroup does not limit them.
    """
    names = {2: ("cpuset.cpus.effective",), 1: ("cpuset.effective_cpus", "cpuset.cpus")}
    for version, folder in _folders("cpuset", root):
        for name in names[version]:
            cpus = cpu_list.parse(read_text(folder / name))
            if cpus:
                return cpus
    return None


def _ratio(text):
    try:
        quota, period = map(int, text.split())
    except ValueError:  # "max 100000", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _folders(controller, root):
    """Yields the folders of this process's cgroups with a controller, the innermost first.

    Yields:
        Pair of the version of cgroups, 1 or 2, and a `pathlib.Path`.
    """
    mounts = _mounts(root)
    for line in read_text(pathlib.Path(root, "proc/self/cgroup")).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            version, key = 2, None
        elif controller in controllers.split(","):
            version, key = 1, controller
        else:
            continue
        for mount, mounted in mounts.get(key, [(_MOUNT / (key or ""), "/")]):
            inner = _inside(group, mounted)
            folder = pathlib.Path(root, str(mount).lstrip("/"))
            for part in (inner, *inner.parents):
                yield version, folder / part


def _mounts(root):
    """Returns where cgroups are mounted: pairs (mount point, mounted cgroup) by controller.

    Version 2 has the key `None`. proc_pid_mountinfo(5) explains the fields.
    """
    found = {}
    for line in read_text(pathlib.Path(root, "proc/self/mountinfo")).splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        keys = [None] if kind[0] == "cgroup2" else kind[2].split(",")
        for key in keys:
            found.setdefault(key, []).append((fields[4], fields[3]))
    return found


def _inside(group, mounted):
    """Returns the path of a cgroup below the mount point of another one.

    A container sees its own cgroup mounted, but may read the path that its host uses. Its own
    cgroup is then the mount point.
    """
    path = pathlib.PurePosixPath(group)
    try:
        inner = path.relative_to(mounted)
    except ValueError:
        return pathlib.PurePosixPath()
    return pathlib.PurePosixPath() if ".." in inner.parts else inner


def _identity(folder):
    """Returns an identifier of a cgroup, which is the same in all containers of a host."""
    try:
        found = folder.stat()
    except OSError:
        return str(folder)
    return f"{found.st_dev}:{found.st_ino}"
