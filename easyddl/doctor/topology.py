"""The topology of the examined hosts: their racks, processors, caches and GPUs."""

from easyddl.hosts import topology_tree
from easyddl.hosts.topology_tree import counted

# The entries of `easyddl.machine.hardware.facts`, among the facts that an agent reports.
_HARDWARE = ("model", "cores", "packages", "numa_nodes", "caches", "gpus", "quota")


def describe(results, racks=None):
    """Describes the hosts that were reached.

    Args:
        results: `Results`.
        racks: List of strings. The rack of each host; `None` if the racks are not known.

    Returns:
        Dictionary: `tree`, a string of several lines; `notation`, a topology such as `p:6x2x1x1`
        in the notation of IBM PowerAI DDL, for a job that fills the hosts, or `None`; `racks`, the
        argument. `None` if no host was reached.
    """
    hosts = []
    for i, name in enumerate(results.hosts):
        if name in results.facts:
            rack = racks[i] if racks else None
            facts = results.facts[name]["hardware"]
            hardware = {key: facts[key] for key in _HARDWARE}
            ranks = [None] * results.ranks[name]
            hosts.append({"name": name, "rack": rack, **hardware, "ranks": ranks})
    if not hosts:
        return None
    notation = topology_tree.notation({"hosts": hosts})
    # The ranks of a job do not run yet, so the tree leaves them out.
    empty = {"hosts": [{**host, "ranks": []} for host in hosts]}
    _, *lines = topology_tree.render(empty).splitlines()
    known = {host["rack"] for host in hosts} - {None}
    title = counted(len(hosts), "host") + (f" in {counted(len(known), 'rack')}" if known else "")
    ranks = sum(len(host["ranks"]) for host in hosts)
    title += f"; filled by {counted(ranks, 'rank')}: {notation}" if notation else ""
    return {"tree": "\n".join([title, *lines]), "notation": notation, "racks": racks}
