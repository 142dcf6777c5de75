"""The memory that ranks share has no name and no way in from outside."""

import os
import pathlib

import mpi
import numpy as np
from line_errors import renew_communicator
from protected_memory import drop_capability_to_trace, set_reachable

import easyddl as ddl

RANK, SIZE = ddl.rank(), ddl.size()


def mappings():
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "easyddl" in line and ".so" not in line]


def check_memory_is_shared_and_nameless():
    ddl.barrier()
    found = mappings()
    assert found
    for line in found:
        assert "/memfd:easyddl (deleted)" in line and "rw-s" in line, line


def check_no_descriptor_is_left_open():
    ddl.barrier()
    for descriptor in pathlib.Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue  # that of the listing itself
        assert "easyddl" not in target, target


def check_nothing_is_left_in_shared_memory():
    ddl.barrier()
    names = [path.name for path in pathlib.Path("/dev/shm").iterdir()]
    assert not [name for name in names if "easyddl" in name.lower()]
    # MPICH's own memory has no name any more either: a rank that is killed would leave it. Open
    # MPI's daemon removes that of its ranks.
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    shared = [line for line in maps if "/dev/shm/mpich_" in line]
    assert all(line.endswith(" (deleted)") for line in shared), shared
    assert shared or SIZE == 1 or mpi.is_open_mpi() or ddl.num_nodes() > 1


def check_a_rank_that_others_may_not_reach_any_more():
    """All ranks go by the shared memory then, until it may be reached again."""
    if SIZE == 1 or ddl.num_nodes() > 1:  # there MPI itself may reach into other ranks' memory
        return
    drop_capability_to_trace()
    renew_communicator()
    for is_reachable in (True, False, True):
        if RANK == SIZE - 1:
            set_reachable(is_reachable)
        for count in (37, 300_007):
            mine = np.arange(count, dtype="float32") % 101 + RANK
            expected = SIZE * (np.arange(count, dtype="float32") % 101) + sum(range(SIZE))
            np.testing.assert_array_equal(ddl.allreduce(mine, "sum"), expected)
