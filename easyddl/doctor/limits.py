"""The limits of a process on this host: locked memory, open files, shared memory, CPU time."""

import mmap
import os
import resource

from easyddl.machine import cgroup
from easyddl.runtime import mpi_files


def facts():
    """Reads the limits.

    Returns:
        Dictionary: `memlock` in bytes and `nofile` in files, `None` for no limit; `shared_memory`,
        what is free of /dev/shm, `None` without one; `memfd_error`, the reason why memory cannot
        be shared, or `None`; `cpu_quota` in CPUs, `None` for no limit.
    """
    quota = cgroup.cpu_quota()
    return {
        "memlock": _limit(resource.RLIMIT_MEMLOCK),
        "nofile": _limit(resource.RLIMIT_NOFILE),
        "shared_memory": mpi_files.free_memory(),
        "memfd_error": _memfd_error(),
        "cpu_quota": quota.cpus if quota else None,
    }


def _limit(kind):
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _memfd_error():
    """Shares memory as the engine does among the ranks of a host. Returns the error, or `None`."""
    try:
        descriptor = os.memfd_create("easyddl-doctor")
    except OSError as error:
        return str(error)
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        with mmap.mmap(descriptor, mmap.PAGESIZE) as memory:
            memory[0] = 1
        # Another rank opens the memory through /proc.
        os.close(os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR))
    except (OSError, ValueError) as error:
        return str(error)
    finally:
        os.close(descriptor)
    return None
