"""Compares the ranks that a launcher has started with the ranks that the user asked for."""

import collections

from easyddl.hosts.topology_tree import counted
from easyddl.launch.supervise import host_names
from easyddl.machine import cpu_list


def problem(placement, hellos, version):
    """Returns the first difference between the ranks that reported and the ranks asked for.

    Args:
        placement: `Placement` that was asked for.
        hellos: Dictionary from each rank to the facts that it reported: `host`, `kernel`,
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
    """Compares the number of ranks on each host, and the names of the hosts."""
    kernels = collections.defaultdict(list)
    for rank, hello in sorted(hellos.items()):
        kernels[hello["kernel"]].append(rank)
    granted = [len(ranks) for ranks in kernels.values()]
    asked = [host.slots for host in placement.hosts]
    if sorted(granted) != sorted(asked):
        difference = (
            f"The job was to run on {_told(placement)}, but it runs on "
            f"{', '.join(_on(hellos, ranks) for ranks in kernels.values())}."
        )
        return f"{difference} {_names_of_one_host(placement, kernels.values())}".rstrip()
    for rank, hello in sorted(hellos.items()):
        name = placement.host_of(rank)
        if not placement.local and _are_different(name, hello, placement, hellos):
            return f"Rank {rank} was to run on {name}, but it runs on {hello['host']}."
    return None


def _names_of_one_host(placement, kernels):
    """Returns a sentence about names whose ranks all run on one host; empty if there are none."""
    whole = {host.name: [] for host in placement.hosts}
    for number, ranks in enumerate(kernels):
        for rank in ranks:
            whole[placement.host_of(rank)].append(number)
    on_one_kernel = {name: each[0] for name, each in whole.items() if len(set(each)) == 1}
    return host_names.text_of_one_host(on_one_kernel, ", or the launcher ignores them")


def _cpus(placement, hellos, version):
    """Returns a message on the first rank that may use CPUs outside of the job's limit."""
    for rank, hello in sorted(hellos.items()):
        if placement.cpus is not None and not placement.cpus.issuperset(hello["cpus"]):
            return (
                f"Rank {rank} may use the CPUs {cpu_list.render(hello['cpus'])}, but `--cpus` "
                f"allows {cpu_list.render(placement.cpus)}: the launcher does not pass the limit "
                "on. Leave out `--cpus`."
            )
    return None


def _told(placement):
    hosts = ", ".join(f"{host.name} ({counted(host.slots, 'rank')})" for host in placement.hosts)
    return f"{hosts}, from {placement.source}"


def _on(hellos, ranks):
    return f"{hellos[ranks[0]]['host']} ({counted(len(ranks), 'rank')})"


def _are_different(asked, hello, placement, hellos):
    """Returns whether a host is certainly not the one that the user named.

    The user's name may be an alias that only ssh knows. So a host is certainly another one only if
    its address differs, or if it reports the name of another host of the job. A name that several
    hosts report is no evidence.
    """
    if host_names.is_address(asked):
        return asked not in hello["addresses"] and not asked.startswith("127.")
    own = host_names.short(hello["host"])
    others = {host_names.short(host.name) for host in placement.hosts}
    if own == host_names.short(asked) or own not in others:
        return False
    with_own = {each["kernel"] for each in hellos.values() if host_names.short(each["host"]) == own}
    return len(with_own) == 1
