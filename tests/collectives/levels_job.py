"""Run under mpirun by test_levels.py: collectives at some levels of groups, against NumPy.

Its argument is the number of levels.
"""

import without_keras  # noqa: F401  (first)

# isort: split
import functools
import hashlib
import os
import sys

import numpy as np
from ranks import assert_equal, assert_same_on_all, bits, inputs, noise, reduced, values

import easyddl as ddl
from easyddl.runtime import world

COUNTS = (0, 1, 2, 3, 5, 7, 13, 31, 127, 1009, 2053, 65_537, 262_147, 1_000_003)
HOSTS = os.environ["EASYDDL_HOSTS"].split(",")
RACKS = os.environ["EASYDDL_RACKS"].split(",")
ALGORITHM = os.environ.get("EASYDDL_ALGORITHM", "")
ORDER = [int(host) for host in os.environ["EASYDDL_HOST_ORDER"].split(",")]


def sums_of_hosts(arrays):
    by_host = {host: [] for host in HOSTS}
    for host, array in zip(HOSTS, arrays, strict=True):
        by_host[host].append(array)
    return [functools.reduce(np.add, of_host) for of_host in by_host.values()]


def sum_by_hosts(arrays):
    """The sum of all ranks' arrays: of a host, and of these in the order of their numbers."""
    return functools.reduce(np.add, sums_of_hosts(arrays))


def sum_by_levels(arrays):
    """The sum of all ranks' arrays: of a host, of these those of a rack, and so on outward.

    The hosts are in the given order, and groups in that of their first hosts.
    """
    members = [
        (tuple(rack.split("/")), of_host)
        for rack, of_host in zip(RACKS, sums_of_hosts(arrays), strict=True)
    ]
    members = [members[host] for host in ORDER]
    while True:
        groups = {}
        for path, array in members:
            groups.setdefault(path, []).append(array)
        members = [(path[:-1], functools.reduce(np.add, group)) for path, group in groups.items()]
        if len(members) == 1:
            return members[0][1]


def allreduce(count):
    for case in ("float32 sum", "float32 mean", "bfloat16 sum", "int8 max"):
        dtype, op = case.split()
        everyones = inputs(count, dtype, seed=count)
        result = ddl.allreduce(everyones[ddl.rank()], op)
        assert_equal(result, reduced(everyones, op))
        assert_same_on_all(result)


def bits_of_sums(count):
    """Returns the sum of numbers whose order matters."""
    everyones = [noise(rank, count, "float32") for rank in range(ddl.size())]
    result = ddl.allreduce(everyones[ddl.rank()], "sum")
    assert_same_on_all(result)
    if ALGORITHM == "direct":
        assert bits(result) == bits(sum_by_levels(everyones)), count
    if ALGORITHM.startswith("flat") and count <= 1009:
        assert bits(result) == bits(sum_by_hosts(everyones)), count
    return result


def broadcast(count):
    for root in {0, ddl.size() // 2, ddl.size() - 1}:
        everyones = inputs(count, "float32", seed=count)
        assert_equal(ddl.broadcast(everyones[ddl.rank()], root), everyones[root])


def parts(count):
    """Gathers, exchanges and reduces parts. Those of each rank have a length of their own."""
    size = ddl.size()
    lengths = [count // size + rank % 3 for rank in range(size)]
    everyones = [values(rank, length, "int32") for rank, length in enumerate(lengths)]
    assert_equal(ddl.allgather(everyones[ddl.rank()]), np.concatenate(everyones))

    def splits(rank):
        return [(count // size**2 + rank + 2 * to) % (count + 1) for to in range(size)]

    everyones = [values(rank, sum(splits(rank)), "int32") for rank in range(size)]
    received = ddl.alltoall(everyones[ddl.rank()], np.array(splits(ddl.rank())))
    starts = [sum(splits(rank)[: ddl.rank()]) for rank in range(size)]
    expected = [
        everyones[rank][start : start + splits(rank)[ddl.rank()]]
        for rank, start in enumerate(starts)
    ]
    assert_equal(received, np.concatenate(expected))

    each = count // size
    everyones = inputs(each * size, "float32", seed=count)
    part = slice(each * ddl.rank(), each * (ddl.rank() + 1))
    result = ddl.reduce_scatter(everyones[ddl.rank()], "sum")
    assert_equal(result, reduced(everyones, "sum")[part])


def main(levels):
    ddl.barrier()
    assert len(world.engine().world.num_groups) == levels, world.engine().world.num_groups
    digest = hashlib.sha256()
    for count in COUNTS:
        allreduce(count)
        digest.update(bits_of_sums(count).tobytes())
        broadcast(count)
        parts(count)
    if ddl.is_root():
        print("digest", digest.hexdigest())
    ddl.barrier()
    print("all is well")


main(int(sys.argv[1]))
