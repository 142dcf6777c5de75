"""Reads the graph of a network from a TOML file, or from Slurm's topology.conf."""

import collections
import re

from easyddl.hosts import host_list
from easyddl.plan.cost import LATENCY_BYTES
from easyddl.plan.graph import Graph, Link
from easyddl.plan.toml_file import TomlFile, read_text

_ARGUMENT = "--topology"  # for errors
_RATES = {
    "bit/s": 1 / 8, "kbit/s": 1e3 / 8, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8, "Tbit/s": 1e12 / 8,
    "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9,
}  # fmt: skip
_TIMES = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_MOST = 10**18  # bytes, bytes per second or seconds
_SIZES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_KINDS = {
    "rate": (_RATES, "a rate above 0, such as '10 Gbit/s'"),
    "latency": (_TIMES, "a time of at least 0, such as '20 us'"),
    "size": (_SIZES, "a size above 0, such as '16 MB'"),
}


def quantity(text, kind):
    """Converts a text with a unit to bytes per second, seconds, or bytes.

    Args:
        text: String, such as `10 Gbit/s`.
        kind: String: `rate`, `latency` or `size`.

    Raises:
        ValueError: If it is not of this form, or a rate or a size is not above 0.
    """
    units, form = _KINDS[kind]
    found = re.fullmatch(r"\s*([0-9]+\.?[0-9]*)\s*([A-Za-z/]+)\s*", str(text))
    if not found or found[2] not in units:
        raise ValueError(f"must be {form}, in one of the units {', '.join(units)}")
    value = float(found[1]) * units[found[2]]
    if value == 0 and kind != "latency":
        raise ValueError(f"must be {form}")
    if value >= _MOST:
        raise ValueError(f"must be {form}, and not that large")
    return value


def read(path, rate, uplink):
    """Reads the file of a network.

    Args:
        path: String. A file whose name ends in `.toml`, or else one of Slurm.
        rate: Float. Bytes per second of the link of a host, for a file of Slurm, which has none.
        uplink: Float. The same for the links between switches.

    Returns:
        `Graph`.

    Raises:
        ValueError: If the file cannot be read, or is wrong. The text names the line and the value.
    """
    if str(path).endswith(".toml"):
        graph = _of_toml(TomlFile(path, _ARGUMENT))
    else:
        graph = _of_slurm(read_text(path, _ARGUMENT), f"{_ARGUMENT} {path}", rate, uplink)
    try:
        graph.check_routes()
    except ValueError as error:
        raise ValueError(
            f"`{_ARGUMENT}`: the network in {path} is not connected. {error}"
        ) from None
    return graph


# ---- TOML


def _of_toml(file):
    file.check_keys(file.table, ["hosts", "links"], ["switches"])
    hosts, switches = (_names(file, key, file.table) for key in ("hosts", "switches"))
    for name in switches:
        if name in hosts:
            raise file.error("switches", f"{name} is the name of a host, too")
    known, links = {*hosts, *switches}, {}
    for table in file.tables("links", ["between", "and", "rate"], ["latency"]):
        rate, latency = _link(file, table)
        ends = [_names(file, key, table) for key in ("between", "and")]
        for key, names in zip(("between", "and"), ends, strict=True):
            for name in names:
                if name not in known:
                    problem = f"the link leads to {name}, which is no host and no switch"
                    raise file.error(key, problem, table)
        for a in ends[0]:
            for b in ends[1]:
                if a == b:
                    raise file.error("and", f"the link joins {a} to itself", table)
                if frozenset((a, b)) in links:
                    raise file.error("between", f"{a} and {b} have a link already", table)
                # A message between two hosts then has the latency that the engine assumes.
                assumed = sum(LATENCY_BYTES / 2 / rate for name in (a, b) if name in hosts)
                links[frozenset((a, b))] = Link(
                    (a, b), rate, assumed if latency is None else latency
                )
    return Graph(hosts, switches, links.values())


def _link(file, table):
    values = []
    for key in ("rate", "latency"):
        try:
            values.append(quantity(table[key], key) if key in table else None)
        except ValueError as error:
            raise file.error(key, f"the {key} {error}", table) from None
    return values


def _names(file, key, table):
    """Returns the names of a text such as `h[1-4],m1`, or of a list of such texts."""
    value = table.get(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise file.error(key, f"{key} must be names, such as 'h[1-4]'", table)
    try:
        names = [name for text in texts for name in host_list.expand_names(text)]
        for name in names:
            host_list.check_name(name, key, name)
    except ValueError as error:
        raise file.error(key, _problem(error), table) from None
    for name, count in collections.Counter(names).items():
        if count > 1:
            raise file.error(key, f"{key} names {name} twice", table)
    if not names and key == "hosts":
        raise file.error(key, "a network needs a host", table)
    return names


def _problem(error):
    """Returns what is wrong with a list of hosts, without what was received."""
    return str(error).partition(" Received: ")[0].rstrip(".")


# ---- Slurm


def _of_slurm(text, place, rate, uplink):
    """Makes a graph of a topology.conf of Slurm's plugin topology/tree."""
    children, hosts, parents, lines = {}, [], {}, {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        where = f"{place}, line {number}"
        fields = {key.lower(): value for key, value in re.findall(r"(\w+)\s*=\s*(\S+)", line)}
        switch = fields.get("switchname")
        if switch is None or not fields.keys() & {"nodes", "switches"}:
            raise ValueError(
                f"`{where}`: expected a switch of Slurm's tree, as in `SwitchName=s1 Nodes=h[1-4]` "
                f"or `SwitchName=s0 Switches=s[1-2]`. Received: {line!r}"
            )
        if switch in children:
            raise ValueError(f"`{where}`: the switch {switch} is given twice. Received: {line!r}")
        try:
            nodes = host_list.expand_names(fields.get("nodes", ""))
            below = host_list.expand_names(fields.get("switches", ""))
        except ValueError as error:
            raise ValueError(f"`{where}`: {_problem(error)}. Received: {line!r}") from None
        for name in (*nodes, *below):
            if name in parents:
                raise ValueError(
                    f"`{where}`: {name} is below the switch {parents[name]} already, and a tree "
                    f"has no loop. Received: {line!r}"
                )
            parents[name] = switch
        children[switch], lines[switch] = below, where
        hosts += nodes
    links = [Link((host, parents[host]), rate, LATENCY_BYTES / 2 / rate) for host in hosts]
    for switch, below in children.items():
        for name in below:
            if name not in children:
                raise ValueError(
                    f"`{lines[switch]}`: no line describes the switch {name}. "
                    f"Received: Switches of {switch}: {','.join(below)}"
                )
            links.append(Link((name, switch), uplink, 0.0))
    for name in hosts:
        if name in children:
            raise ValueError(
                f"`{lines[name]}`: {name} is the name of a host, too. Received: SwitchName={name}"
            )
    if not hosts:
        raise ValueError(
            f"`{place}` names no host. It needs a line such as `SwitchName=s1 Nodes=h1`."
        )
    return Graph(hosts, list(children), links)
