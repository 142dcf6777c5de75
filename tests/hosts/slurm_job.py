"""A job without Keras that Slurm starts: it prints its layout, or reduces until it is ended.

`slurm_job.py layout`, `slurm_job.py endless`.
"""

import json
import os
import sys
import time

import engine_only  # noqa: F401  (first)
import numpy as np

from easyddl.hosts import launched_process
from easyddl.runtime import world


def layout():
    """Prints what MPI says of this rank's place, and what the environment says."""
    place = {
        "rank": world.rank(),
        "size": world.size(),
        "local_rank": world.local_rank(),
        "local_size": world.local_size(),
        "node_rank": world.node_rank(),
        "nodes": world.num_nodes(),
        "host": world.host(),
        "hostname": os.uname().nodename,
        "told": [
            *(launched_process.rank(), launched_process.size()),
            *(launched_process.local_rank(), launched_process.local_size()),
        ],
    }
    sys.stdout.write("\n" + json.dumps(place) + "\n")


def endless():
    """Sums numbers over all ranks again and again."""
    communicator = world.engine().communicator
    data = np.ones(100_000, np.float32)
    result = np.empty_like(data)
    fingerprint = world.fingerprint("a sum")
    for number in range(1_000_000):
        inputs, outputs = [data.view(np.uint8)], [result.view(np.uint8)]
        communicator.allreduce(inputs, outputs, "float32", "sum", fingerprint)
        if number == 3 and world.is_root():
            sys.stdout.write("all ranks are here\n")
            sys.stdout.flush()
        time.sleep(0.01)


if __name__ == "__main__":
    {"layout": layout, "endless": endless}[sys.argv[1]]()
