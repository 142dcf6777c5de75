"""Run under mpirun by test_input.py: rank 1 reads standard input, before or after it has started.

Usage: input_job.py WHEN
"""

import sys

import engine_only  # noqa: F401  (first)

# isort: split
import os

import easyddl
from easyddl.runtime import world

if sys.argv[1] == "after":
    easyddl.init()
# Launchers give the other ranks an empty standard input, or one that never ends.
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    kept_open, _ = os.pipe()
    os.dup2(kept_open, 0)
    input()
easyddl.init()
world.barrier()
