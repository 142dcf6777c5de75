"""The topology of a job as text: a tree of racks, hosts, processors, caches, GPUs and ranks.

The functions take JSON data, and read nothing themselves. A job is a dict:

    {"hosts": [{
        "name": "h1",
        "rack": "x",                     # or "aisle/x", or None
        "model": "AMD EPYC 9654",        # or ""
        "cores": ["0,8", "1,9"],         # the CPUs of each core, as in /sys
        "packages": ["0-1,8-9"],
        "numa_nodes": ["0-1,8-9"],
        "caches": [{"level": 3, "kind": "Unified", "bytes": 33554432, "cpus": "0-1,8-9"}],
        "gpus": ["NVIDIA H100"],         # the name of each GPU
        "quota": 1.5,                    # CPUs that the container may use, or None
        "ranks": [{"rank": 0, "cpus": "0,8", "threads": 1}],
    }]}

`hardware.facts()` returns all entries of a host except its name, rack and ranks.
"""

import collections
import dataclasses
import itertools

from easyddl.hosts import host_list
from easyddl.machine import cpu_list, units

_GROUPS = ("rack", "aisle")  # the innermost first; larger ones have no name of their own
_BRANCH, _LAST, _STEM, _SPACE = "├─ ", "└─ ", "│  ", "   "


def counted(count, noun):
    """Returns a count and its noun, as in "1 rank" or "2 ranks"."""
    return f"{count} {noun}{'s' * (count != 1)}"


@dataclasses.dataclass
class _Node:
    """A line of the tree, and the lines below it."""

    text: str
    children: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Group:
    """CPUs that share a package, a NUMA node or a cache."""

    kind: str
    cpus: frozenset
    size: str = ""
    inner: list = dataclasses.field(default_factory=list)
    ranks: list = dataclasses.field(default_factory=list)


def render(job):
    """Returns the tree of a job.

    Args:
        job: Dict: see above.

    Returns:
        String of several lines, without a line break at its end.
    """
    hosts = job["hosts"]
    racks = collections.defaultdict(list)
    for host in hosts:
        racks[host.get("rack")].append(host)
    named = None not in racks
    root = _Node(_title(job))
    nodes = {(): root}
    for rack, members in racks.items():
        path = tuple(rack.split("/")) if named else ()
        for depth in range(len(path)):
            inner, outer = path[: depth + 1], path[:depth]
            if inner not in nodes:
                nodes[inner] = _Node(f"{_kind(len(path) - depth - 1)} {path[depth]}")
                nodes[outer].children.append(nodes[inner])
        nodes[path].children += [_host(alike) for alike in _alike(members)]
    return "\n".join([root.text, *_lines(root.children, "")])


def notation(job):
    """Returns the topology in the notation of IBM PowerAI DDL, such as `p:6x2x1x1`.

    The numbers are the accelerators of a host, the hosts of a rack, the racks of an aisle, and the
    aisles. DDL runs one rank on each accelerator, so the first number is that of the ranks of a
    host. `ddlrun` prints the notation as `DDL_OPTIONS=-mode p:6x2x1x1`; its options are
    described in IBM's documentation of Watson Machine Learning Community Edition, "Using the ddlrun
    tool". Without names of aisles the last number is 1.

    Args:
        job: Dict: see above.

    Returns:
        String; `None` if hosts have different numbers of ranks, racks different numbers of hosts,
        or aisles different numbers of racks.
    """
    ranks = {len(host["ranks"]) for host in job["hosts"]}
    racks = collections.Counter(host.get("rack") for host in job["hosts"])
    aisles = collections.Counter((rack or "").rpartition("/")[0] for rack in racks)
    numbers = [ranks, set(racks.values()), set(aisles.values())]
    if any(len(each) != 1 for each in numbers):
        return None
    return f"p:{'x'.join(str(each.pop()) for each in numbers)}x{len(aisles)}"


def _kind(level):
    return _GROUPS[level] if level < len(_GROUPS) else "group"


def _title(job):
    hosts = job["hosts"]
    racks = {host.get("rack") for host in hosts} - {None}
    parts = [
        counted(sum(len(host["ranks"]) for host in hosts), "rank"),
        f"on {counted(len(hosts), 'host')}",
        *([f"in {counted(len(racks), 'rack')}"] if racks else []),
    ]
    short = notation(job)
    return " ".join(parts) + (f", {short}" if short else "")


def _alike(hosts):
    """Groups the hosts that differ only in their names and in the numbers of their ranks."""
    groups = collections.defaultdict(list)
    for host in hosts:
        cpus = [(rank["cpus"], rank.get("threads")) for rank in host["ranks"]]
        rest = {key: value for key, value in host.items() if key not in ("name", "ranks")}
        groups[repr((sorted(rest.items()), cpus))].append(host)
    return list(groups.values())


def _host(hosts):
    """Returns the common subtree of hosts that are alike."""
    first = hosts[0]
    name = host_list.fold([host["name"] for host in hosts])
    node = _Node(f"{name}, alike" if len(hosts) > 1 else name)
    node.children.append(_Node(_processor(first)))
    groups = _groups(first)
    outer = _nested(groups)
    placeless = [i for i in range(len(first["ranks"])) if not _place(groups, first["ranks"][i], i)]
    node.children += [_rank(hosts, i) for i in placeless]
    node.children += _group_nodes(outer, hosts, first)
    gpus = collections.Counter(first["gpus"])
    node.children += [
        _Node(f"{counted(count, 'GPU')}{f': {model}' if model else ''}")
        for model, count in gpus.items()
    ]
    return node


def _processor(host):
    """Returns the line that describes the processors of a host."""
    cores, cpus = len(host["cores"]), len(_cpus(host["cores"]))
    parts = [
        *([host["model"]] if host["model"] else []),
        counted(len(host["packages"]), "package"),
        counted(cores, "core"),
        *([counted(cpus, "CPU")] if cpus != cores else []),
    ]
    own = {
        f"L{each['level']}{_suffix(each)} {units.size(each['bytes'])}": None
        for each in host["caches"]
        if _is_of_one_core(each, host)
    }
    if own:
        parts.append(f"each core with {', '.join(own)}")
    if host.get("quota") is not None:
        parts.append(f"limited to {host['quota']:g} CPUs by its cgroup")
    return ", ".join(parts)


def _groups(host):
    """Returns the packages, the NUMA nodes and the caches that several cores of a host share."""
    groups = [_Group(f"package {i}", _cpus([p])) for i, p in enumerate(host["packages"])]
    groups += [_Group(f"NUMA node {i}", _cpus([n])) for i, n in enumerate(host["numa_nodes"])]
    for cache in sorted(host["caches"], key=lambda cache: -cache["level"]):
        if not _is_of_one_core(cache, host):
            kind = f"L{cache['level']}{_suffix(cache)}"
            groups.append(_Group(kind, _cpus([cache["cpus"]]), units.size(cache["bytes"])))
    merged = {}
    for group in groups:  # merge groups that have the same CPUs
        known = merged.get(group.cpus)
        if known is None:
            merged[group.cpus] = group
        elif group.kind.startswith("L"):
            known.size = ", ".join(filter(None, [known.size, f"{group.kind} {group.size}"]))
        elif not known.kind.startswith("package"):
            known.kind = f"{known.kind}, {group.kind}"
    return list(merged.values())


def _is_of_one_core(cache, host):
    cpus = cpu_list.parse(cache["cpus"])
    return any(cpus <= cpu_list.parse(core) for core in host["cores"])


def _nested(groups):
    """Puts each group into the smallest enclosing group, and returns the outermost groups."""
    outer = []
    for group in groups:
        around = [each for each in groups if group.cpus < each.cpus]
        (min(around, key=lambda each: len(each.cpus)).inner if around else outer).append(group)
    return outer


def _place(groups, rank, index):
    """Puts a rank into the smallest group that contains its CPUs. Returns whether there is one."""
    cpus = cpu_list.parse(rank["cpus"])
    around = [each for each in groups if cpus and cpus <= each.cpus]
    if around:
        min(around, key=lambda each: len(each.cpus)).ranks.append(index)
    return bool(around)


def _group_nodes(groups, hosts, first):
    """Returns the subtrees of groups. Adjacent equal groups without content share one line."""
    nodes, ordered = [], sorted(groups, key=lambda group: min(group.cpus))
    for _, equal in itertools.groupby(ordered, key=_shape):
        group, *others = equal
        text = _group_text(group, first, each=bool(others))
        node = _Node(f"{1 + len(others)} × {text}" if others else text)
        node.children += [_rank(hosts, index) for index in group.ranks]
        node.children += _group_nodes(group.inner, hosts, first)
        nodes.append(node)
    return nodes


def _shape(group):
    """Returns what is equal for groups that share one line."""
    content = id(group) if group.inner or group.ranks else None
    return content, group.kind.split()[0], group.size, len(group.cpus)


def _group_text(group, host, each=False):
    cores = sum(1 for core in host["cores"] if cpu_list.parse(core) & group.cpus)
    kind = group.kind.rstrip("0123456789 ") if each and " " in group.kind else group.kind
    is_cache = group.kind.startswith("L")
    name = f"{kind} {group.size}" if is_cache else kind
    rest = [counted(cores, "core")]
    if not each:
        rest.append(f"CPUs {cpu_list.render(group.cpus)}")
    if group.size and not is_cache:
        rest.append(group.size)
    return f"{name}: {', '.join(rest)}" + (" each" if each else "")


def _rank(hosts, index):
    """Returns the line for the ranks that have the same place on hosts that are alike."""
    ranks = [host["ranks"][index] for host in hosts]
    numbers = ", ".join(str(rank["rank"]) for rank in ranks)
    text = f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers}: CPUs {ranks[0]['cpus']}"
    threads = ranks[0].get("threads")
    return _Node(f"{text}, {counted(threads, 'thread')}" if threads else text)


def _lines(nodes, indent):
    for node in nodes:
        is_last = node is nodes[-1]
        yield indent + (_LAST if is_last else _BRANCH) + node.text
        yield from _lines(node.children, indent + (_SPACE if is_last else _STEM))


def _suffix(cache):
    return {"Data": "d", "Instruction": "i"}.get(cache["kind"], "")


def _cpus(lists):
    return frozenset().union(*(cpu_list.parse(text) for text in lists))
