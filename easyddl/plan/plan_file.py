"""The file of a plan: hosts, their groups, the order of both, and the algorithms of the levels."""

import collections
import json
import pathlib
import re

from easyddl.plan import cost
from easyddl.plan.toml_file import TomlFile

_FORMAT = 1
_MOST_LEVELS = 16
_MOST_BYTES = 10**18
_NAME = r"[^\s,/\0]+"  # it becomes a part of EASYDDL_RACKS


def group_names(graph, nest):
    """Returns a name for each group of a nest but the outermost.

    A group whose hosts are all on one switch has the name of the switch.

    Returns:
        Dict of strings by group.
    """
    names, used = {}, {*graph.hosts}
    for level in range(cost.depth(nest) - 1):
        for group in cost.groups_at(nest, level):
            switches = {graph.switch_of(host) for host in cost.hosts_of(group)}
            name = switches.pop() if len(switches) == 1 else ""
            number = 0
            while not re.fullmatch(_NAME, name) or name in used:
                number += 1
                name = f"group{number}"
            used.add(name)
            names[group] = name
    return names


def racks_of(nest, names):
    """Returns the rack of each host, as EASYDDL_RACKS has them.

    Args:
        nest: A nest of hosts.
        names: Dict. The name of each group but the outermost.

    Returns:
        Dict of strings by host, such as `{"h1": "a1/r1", "h2": "a1/r2"}`; empty without groups.
    """
    racks = {}
    for level in reversed(range(cost.depth(nest) - 1)):
        for group in cost.groups_at(nest, level):
            for host in cost.hosts_of(group):
                racks[host] = f"{racks[host]}/{names[group]}" if host in racks else names[group]
    return racks


def write(path, nest, names, rules, comment=""):
    """Writes a plan file.

    Args:
        path: String.
        nest: A nest of hosts.
        names: Dict. The name of each group but the outermost.
        rules: List of pairs, as of a `planner.Plan`.
        comment: String. Lines for the start of the file.

    Raises:
        OSError: If this is not possible.
    """
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines += [f"format = {_FORMAT}", f"hosts = {json.dumps(cost.hosts_of(nest))}"]
    if cost.depth(nest) > 1:
        lines.append(f"order = {json.dumps([names[group] for group in nest])}")
    for level in reversed(range(cost.depth(nest) - 1)):
        for group in cost.groups_at(nest, level):
            members = [child if isinstance(child, str) else names[child] for child in group]
            lines += ["", "[[groups]]", f"name = {json.dumps(names[group])}"]
            lines.append(f"members = {json.dumps(members)}")
    for begin, algorithms in rules:
        lines += ["", "[[algorithms]]", f"from = {begin}", f"levels = {json.dumps(algorithms)}"]
    pathlib.Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(path, argument="--plan"):
    """Reads a plan file.

    Returns:
        Tuple of a nest of hosts, a dict of the names of its groups, and a tuple of rules as of a
        `planner.Plan`. There are no rules if the engine is to choose the algorithms.

    Raises:
        ValueError: If the file cannot be read, or is wrong. The text names the line and the value.
    """
    file = TomlFile(path, argument)
    file.check_keys(file.table, ["format", "hosts"], ["order", "groups", "algorithms"])
    if file.table["format"] != _FORMAT or type(file.table["format"]) is not int:
        raise file.error("format", f"this version of easyddl reads the format {_FORMAT}")
    hosts = _strings(file, "hosts", file.table)
    if not hosts:
        raise file.error("hosts", "a plan needs a host")
    if not all(re.fullmatch(_NAME, host) for host in hosts):
        problem = "the name of a host must be a text without spaces, commas and slashes"
        raise file.error("hosts", problem)
    groups = _groups(file, hosts)
    if not groups:
        if "order" in file.table:
            raise file.error("order", "there are no groups to order")
        return tuple(hosts), {}, _rules(file, 1)
    if "order" not in file.table or not _strings(file, "order", file.table):
        raise file.error("order", "the key 'order' must name the outermost groups")
    nest, names = _nest(file, groups, hosts)
    return nest, names, _rules(file, cost.depth(nest))


def _rules(file, levels):
    """Returns the rules of the tables [[algorithms]]."""
    rules, known = [], ", ".join(cost.ALGORITHMS)
    for table in file.tables("algorithms", ["from", "levels"]):
        begin, algorithms = table["from"], table["levels"]
        if type(begin) is not int or not 0 <= begin < _MOST_BYTES:
            problem = f"from must be a number of bytes below {_MOST_BYTES:.0e}"
            raise file.error("from", problem, table)
        if bool(begin) != bool(rules) or (rules and begin <= rules[-1][0]):
            problem = "the first from must be 0, and each other greater than the one before"
            raise file.error("from", problem, table)
        is_flat = algorithms == list(cost.FLAT)
        if not isinstance(algorithms, list) or not (
            is_flat or all(each in cost.ALGORITHMS for each in algorithms)
        ):
            problem = f"levels must be a list of {known}, or of flat alone"
            raise file.error("levels", problem, table)
        if len(algorithms) != levels and not is_flat:
            problem = f"levels must name the algorithm of each of the {levels} level(s)"
            raise file.error("levels", problem, table)
        rules.append((begin, tuple(algorithms)))
    return tuple(rules)


def _groups(file, hosts):
    """Returns the table of each group by its name."""
    groups = {}
    for table in file.tables("groups", ["name", "members"]):
        name = table["name"]
        if not isinstance(name, str) or not re.fullmatch(_NAME, name):
            problem = "the name of a group must be a text without spaces, commas and slashes"
            raise file.error("name", problem, table)
        if name in groups or name in hosts:
            problem = "given twice" if name in groups else "the name of a host, too"
            raise file.error("name", f"the group {name} is {problem}", table)
        if not _strings(file, "members", table):
            raise file.error("members", f"the group {name} has no member", table)
        groups[name] = table
    return groups


def _nest(file, groups, hosts):
    """Returns the nest of the groups, and a dict of their names."""
    nests = {host: host for host in hosts}

    def join(key, table):
        """Returns the nest of some members; `None` if the nest of one is not known yet."""
        inside = table[key]
        for each in inside:
            if each not in nests and each not in groups:
                problem = f"{each} is none of the hosts and none of the groups"
                raise file.error(key, problem, table)
        if any(each not in nests for each in inside):
            return None
        nest = tuple(nests[each] for each in inside)
        if len(set(map(cost.depth, nest))) > 1:
            problem = "the members of a group must have the same number of levels below them"
            raise file.error(key, problem, table)
        if cost.depth(nest) > _MOST_LEVELS:
            raise file.error(key, f"groups may have {_MOST_LEVELS} levels at most", table)
        return nest

    waiting = list(groups)
    while waiting:
        found = {name: join("members", groups[name]) for name in waiting}
        nests.update({name: nest for name, nest in found.items() if nest is not None})
        if not any(found.values()):
            problem = f"the group {waiting[0]} contains itself"
            raise file.error("members", problem, groups[waiting[0]])
        waiting = [name for name in waiting if name not in nests]
    nest = join("order", file.table)
    placed = collections.Counter(cost.hosts_of(nest))
    for host in hosts:
        if placed[host] != 1:
            problem = f"the host {host} is in {placed[host]} of the groups and their groups"
            raise file.error("order", problem)
    return nest, {nests[name]: name for name in groups}


def _strings(file, key, table):
    """Returns the list of a key, after a check that it has names, each once."""
    value = table[key]
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise file.error(key, f"{key} must be a list of names", table)
    for each, count in collections.Counter(value).items():
        if count > 1:
            raise file.error(key, f"{key} names {each} twice", table)
    return value
