"""Ranks whose memory the kernel protects from each other exchange long messages, without Keras.

Usage: protected_memory_job.py WHEN RANKS
"""

import ctypes
import sys

import without_keras  # noqa: F401  (first)

# isort: split
import os

import numpy as np

import easyddl as ddl

WHEN, RANKS = sys.argv[1], sys.argv[2].split(",")
PR_SET_DUMPABLE = 4
CAPGET, CAPSET = (125, 126) if os.uname().machine == "x86_64" else (90, 91)


def protect():
    """Makes this process one that others of its user may not reach, as `os.setuid` may do."""
    library = ctypes.CDLL(None, use_errno=True)
    assert library.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0


def drop_capability_to_trace():
    """Takes from this process, if it is root's, the right to reach into any process's memory."""
    library = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert library.syscall(CAPGET, header, data) == 0
    for word in (0, 1):
        data[word] &= ~(1 << 19)
    assert library.syscall(CAPSET, header, data) == 0


drop_capability_to_trace()
launched = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
if WHEN == "after":
    ddl.barrier()
if launched in RANKS:
    protect()
mine = np.arange(300_000, dtype="float64")
size = ddl.size()
for call, found in (
    ("allreduce", ddl.allreduce(mine, "sum")),
    ("allgather", ddl.allgather(mine).reshape(size, -1).sum(0)),
    ("alltoall", ddl.alltoall(np.tile(mine, size)).reshape(size, -1).sum(0)),
    ("reduce_scatter", ddl.allgather(ddl.reduce_scatter(mine, "sum"))),
    ("broadcast_object", size * ddl.broadcast_object(mine)),
):
    np.testing.assert_array_equal(found, size * mine, err_msg=call)
print("all is right", flush=True)
