"""Prints the topology of the job on rank 0 if EASYDDL_VERBOSE has any value except 0."""

import os

from easyddl.hosts import racks, topology_tree
from easyddl.machine import cpu_list, hardware
from easyddl.runtime import console


def print_topology(comm, world, threads, named_racks):
    """Prints the topology on rank 0 if any rank wants it. Collective.

    Args:
        comm: The mpi4py communicator of all ranks.
        world: `_core.World`.
        threads: Integer. The number of this rank's compute threads; `None` without a launcher.
        named_racks: String. The racks of the hosts as EASYDDL_RACKS names them.
    """
    is_wanted = os.environ.get("EASYDDL_VERBOSE", "").strip() not in ("", "0")
    if not any(comm.allgather(is_wanted)):
        return
    # The first rank of each host describes the host.
    own = hardware.facts() if world.local_rank == 0 else None
    rank = {
        "rank": comm.rank,
        "cpus": cpu_list.render(os.sched_getaffinity(0)),
        "threads": threads,
    }
    by_rank = comm.gather((world.hosts[world.rank], world.node_rank, own, rank), root=0)
    if by_rank is not None:
        console.say(f"topology: {topology_tree.render(_job(by_rank, named_racks))}")


def _job(by_rank, named_racks):
    """Returns the job in the form that `topology_tree` needs.

    Args:
        by_rank: List of tuples, by rank: the host's name, its number, its facts or `None`, and
            the rank's own facts.
        named_racks: String. The racks of the hosts as EASYDDL_RACKS names them.
    """
    by_node = {}
    for name, node, facts, rank in by_rank:
        host = by_node.setdefault(node, {"name": name, "ranks": []})
        host["ranks"].append(rank)
        host.update(facts or {})
    hosts = [by_node[node] for node in sorted(by_node)]
    found = racks.of_hosts([host["name"] for host in hosts], named=named_racks)
    found = found or [None] * len(hosts)
    return {"hosts": [{**host, "rack": rack} for host, rack in zip(hosts, found, strict=True)]}
