"""Compares what a launcher granted with what was asked for."""

import collections
import ipaddress

from easyddl.runtime import cpu_list


def problem(placement, hellos, version):
    """Finds the first difference between the ranks that reported and those asked for.

    Args:
        placement: `Placement`. What was asked for.
        hellos: Dictionary from ranks to what each rank said of itself: `host`, `machine`,
            `addresses`, `size`, `version`, `local_rank` and `cpus`.
        version: String. The version of easyddl here.

    Returns:
        String, or `None` if there is no difference.
    """
    for check in (_sizes, _versions, _hosts, _cpus):
        found = check(placement, hellos, version)
        if found:
            return found
    return None


def _sizes(placement, hellos, version):
    sizes = {hello["size"] for hello in hellos.values()}
    if sizes != {placement.size}:
        return (
            f"The launcher started jobs of {' and '.join(map(str, sorted(sizes, key=str)))} "
            f"rank(s) instead of one job of {placement.size}."
        )
    return None


def _versions(placement, hellos, version):
    for rank, hello in sorted(hellos.items()):
        if hello["version"] != version:
            return (
                f"The host {hello['host']} (rank {rank}) has easyddl {hello['version']}, and this "
                f"host has {version}. Install the same version on all hosts."
            )
    return None


def _hosts(placement, hellos, version):
    """Compares the ranks on each machine, and the machines' names where both are names."""
    machines = collections.defaultdict(list)
    for rank, hello in sorted(hellos.items()):
        machines[hello["machine"]].append(rank)
    granted = [len(ranks) for ranks in machines.values()]
    asked = [host.slots for host in placement.hosts]
    if sorted(granted) != sorted(asked):
        return (
            f"The job was to run on {_told(placement)}, but it runs on "
            f"{', '.join(_on(hellos, ranks) for ranks in machines.values())}."
        )
    for rank, hello in sorted(hellos.items()):
        name = placement.host_of(rank)
        if not placement.local and _are_different(name, hello, placement):
            return f"Rank {rank} was to run on {name}, but it runs on {hello['host']}."
    return None


def _cpus(placement, hellos, version):
    """Finds a rank that has not inherited the limit of the job's CPUs."""
    for rank, hello in sorted(hellos.items()):
        if placement.cpus is not None and not placement.cpus.issuperset(hello["cpus"]):
            return (
                f"Rank {rank} may use the CPUs {cpu_list.render(hello['cpus'])}, but `--cpus` "
                f"allows {cpu_list.render(placement.cpus)}: the launcher does not pass the limit "
                "on. Leave out `--cpus`."
            )
    return None


def _told(placement):
    hosts = ", ".join(f"{host.name} ({_ranks(host.slots)})" for host in placement.hosts)
    return f"{hosts}, from {placement.source}"


def _on(hellos, ranks):
    return f"{hellos[ranks[0]]['host']} ({_ranks(len(ranks))})"


def _ranks(count):
    return f"{count} rank{'s' * (count > 1)}"


def _are_different(asked, hello, placement):
    """Whether a host surely is not the one that was asked for.

    A name may be an alias that only ssh knows, so only the names of other hosts of the job, and
    addresses, are believed.
    """
    if _is_address(asked):
        return asked not in hello["addresses"] and not asked.startswith("127.")
    others = {_short(host.name) for host in placement.hosts} - {_short(asked)}
    return _short(hello["host"]) in others


def _short(name):
    return name.partition(".")[0]


def _is_address(name):
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
