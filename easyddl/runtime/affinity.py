"""The CPU cores that this rank may use."""

import os

from easyddl.runtime import launcher


def compute_threads():
    """The number of cores of this rank, so that the ranks of a machine share its cores evenly."""
    cores = os.sched_getaffinity(0)
    try:
        bound = cores != os.sched_getaffinity(os.getppid())
    except OSError:
        bound = False
    # A launcher that binds ranks to cores has already given each rank its own.
    return len(cores) if bound else max(1, len(cores) // launcher.local_size())
