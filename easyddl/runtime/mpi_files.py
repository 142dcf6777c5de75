"""MPICH's files and shared memory. Removes files that a job without MPI_Finalize would leave.

MPICH's shared memory has a name in /dev/shm until MPI_Finalize. The launcher's agent on a host
keeps the host's topology in a temporary file until the job ends. If a rank is killed, these files
remain. The memory of three ranks has 3 MB, so about 20 such jobs fill the 64 MB of a container's
/dev/shm. All ranks open both files within MPI_Init, so their names are not needed once all ranks
have left MPI_Init.
"""

import contextlib
import os
import pathlib
import re
import time

from easyddl.machine import process_tree, processes, units

MORE_SHARED_MEMORY = (
    "start the container with --shm-size=1g (Kubernetes: an emptyDir of medium Memory)"
)

_AGENT = "hydra_pmi_proxy"
_MEMORY = re.compile(r"/dev/shm/mpich_(?:shm|vci)_\S+$", re.MULTILINE)
_TOPOLOGY = re.compile(r"/tmp/hydra_hwloc_xmlfile_\w+")


def free_memory():
    """Returns the free bytes of /dev/shm; `None` without one."""
    with contextlib.suppress(OSError):
        found = os.statvfs("/dev/shm")
        return found.f_bavail * found.f_frsize
    return None


def shortage(free, ranks):
    """Returns a text about a /dev/shm in which MPICH may crash; empty if enough is free.

    As measured with MPICH 5.0.2: each rank fills 5.2 MiB in MPI_Init, which crashes now and then
    unless about twice that much is left. Open MPI takes other memory if /dev/shm is too small.

    Args:
        free: Integer. Its free bytes; `None` if there is none, or for Open MPI.
        ranks: Integer. The number of ranks on the host.
    """
    needed = (ranks + 2) * 5.2 * (1 << 20)
    if free is None or free >= needed:
        return ""
    has = f"/dev/shm has {units.size(free)} free"
    return f"{has}, but {ranks} ranks of MPICH need {units.size(needed)}"


def remove_own():
    """Removes the files of this rank's job. Call it when all ranks have left MPI_Init."""
    paths = of_rank(os.getpid())
    for ancestor in processes.ancestors():
        if ancestor.name == _AGENT:
            paths |= of_agent(ancestor.id)
    remove(paths)


def of_rank(process):
    """Returns the set of the paths of shared memory that a process has mapped.

    Args:
        process: Integer. The id of the process. The set is empty if the process has ended, or may
            not be examined.
    """
    with contextlib.suppress(OSError):
        maps = pathlib.Path(f"/proc/{process}/maps").read_text(errors="replace")
        return set(_MEMORY.findall(maps))  # files without a name any more do not match
    return set()


def unused(seconds):
    """Returns the set of the paths of this user's shared memory that no process has mapped.

    Args:
        seconds: Number. The largest age of the files.
    """
    paths = set()
    for path in pathlib.Path("/dev/shm").glob("mpich_*"):
        with contextlib.suppress(OSError):  # it was removed in the meantime
            found = path.stat()
            if found.st_uid == os.getuid() and time.time() - found.st_ctime <= seconds:
                paths.add(str(path))
    return paths.difference(*map(of_rank, process_tree.descendants(0))) if paths else paths


def of_agent(process):
    """Returns the set of the paths of topology files that a launcher's agent has open.

    Args:
        process: Integer. The id of the process. The set is empty if the process has ended, or may
            not be examined.
    """
    paths = set()
    with contextlib.suppress(OSError):
        for descriptor in pathlib.Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):  # the file was closed in the meantime
                paths.add(os.readlink(descriptor))
    return {path for path in paths if _TOPOLOGY.fullmatch(path)}


def remove(paths):
    """Removes files, which another rank of this host may already have removed."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)
