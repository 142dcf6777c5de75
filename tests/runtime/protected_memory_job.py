"""Ranks whose memory the kernel protects from each other exchange long messages, without Keras.

Usage: protected_memory_job.py WHEN RANKS
"""

import sys

import without_keras  # noqa: F401  (first)

# isort: split
import os

import numpy as np
from protected_memory import drop_capability_to_trace, set_reachable

import easyddl as ddl

WHEN, RANKS = sys.argv[1], sys.argv[2].split(",")


drop_capability_to_trace()
launched = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
if WHEN == "after":
    ddl.barrier()
if launched in RANKS:
    set_reachable(False)
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
