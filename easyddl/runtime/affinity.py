"""This rank's share of the machine's cores."""

import os

from easyddl.runtime import launcher


def compute_threads():
    """The cores that this rank may use without taking another's."""
    cores = os.sched_getaffinity(0)
    try:
        bound = cores != os.sched_getaffinity(os.getppid())
    except OSError:
        bound = False
    # A launcher that binds ranks to cores has divided them already.
    return len(cores) if bound else max(1, len(cores) // launcher.local_size())
