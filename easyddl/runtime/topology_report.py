"""Prints the topology of the job on rank 0, at EASYDDL_VERBOSE=1."""

import os

from easyddl.runtime import affinity, console, cpu_list, hardware, launcher, racks, topology_tree


def is_wanted():
    """Whether EASYDDL_VERBOSE asks for reports: any value but 0."""
    return os.environ.get("EASYDDL_VERBOSE", "").strip() not in ("", "0")


def print_topology(comm, world):
    """Prints the topology on rank 0 if any rank wants it. Collective.

    Args:
        comm: The mpi4py communicator of all ranks.
        world: `_core.World`.
    """
    if not any(comm.allgather(is_wanted())):
        return
    # On each host, the first of its ranks describes it for all.
    own = hardware.facts() if world.local_rank == 0 else None
    rank = {
        "rank": comm.rank,
        "cpus": cpu_list.render(os.sched_getaffinity(0)),
        "threads": affinity.compute_threads() if launcher.size() is not None else None,
    }
    everyones = comm.gather((world.hosts[world.rank], world.node_rank, own, rank), root=0)
    if everyones is not None:
        console.say(f"topology: {topology_tree.render(_job(everyones))}")


def _job(everyones):
    """The job as `topology_tree` takes it.

    Args:
        everyones: List of tuples, by rank: the host's name, its number, its facts or `None`, and
            the rank's own facts.
    """
    names, hosts = {}, {}
    for name, node, facts, rank in everyones:
        names.setdefault(node, name)
        host = hosts.setdefault(node, {"ranks": []})
        host["ranks"].append(rank)
        host.update(facts or {})
    nodes = sorted(hosts)
    found = racks.of_hosts([names[node] for node in nodes]) or [None] * len(nodes)
    return {
        "hosts": [
            {**hosts[node], "name": names[node], "rack": rack}
            for node, rack in zip(nodes, found, strict=True)
        ]
    }
