"""Compares the hosts that a job runs on with the hosts that its hostfile or scheduler names.

If mpirun ignores a hostfile, it starts all ranks on one host, and the job seems to succeed. For
example, Open MPI 5 ignores the variable by which the MPI Operator of Kubernetes passes the hostfile
to Open MPI 4 (https://github.com/kubeflow/trainer/issues/4028).
"""

from easyddl.hosts import launchers
from easyddl.hosts.topology_tree import counted


def problem(environment, size, hosts):
    """Finds out whether a job runs on fewer hosts than it should.

    Args:
        environment: Mapping. The environment variables of this rank.
        size: Integer. The number of ranks.
        hosts: List with the name of each rank's host.

    Returns:
        String that describes the problem; `None` if there is none, or if no hosts are named.

    Raises:
        ValueError: If a hostfile or a variable of a scheduler is wrong.
    """
    found = launchers.allocated(environment)
    if found is None:
        return None
    asked_by, asked = found
    needed = _needed(asked, size)
    granted = sorted(set(hosts))
    if len(granted) >= needed:
        return None
    names = ", ".join(map(str, asked[:8])) + (", ..." if len(asked) > 8 else "")
    return (
        f"The {size} ranks run on {counted(len(granted), 'host')} ({', '.join(granted)}), but "
        f"{_source(asked_by, environment)} has {counted(len(asked), 'host')} for them ({names}). "
        "mpirun does not read it. Start the job with `easyddl run`, which passes the hosts to "
        f"mpirun, or name them with mpirun's option `-H` or `-hosts`.{_cause(environment)}"
    )


def _needed(asked, size):
    """Returns how many hosts the ranks need if each host is filled before the next one."""
    needed = 0
    for host in asked:
        if size <= 0:
            break
        size -= host.slots or 1
        needed += 1
    return needed


def _source(asked_by, environment):
    variable = launchers.mounted_hostfile(environment)
    return f"the hostfile of {variable}" if variable else f"the allocation of {asked_by.name}"


def _cause(environment):
    variable = launchers.mounted_hostfile(environment)
    if variable == "OMPI_MCA_orte_default_hostfile":
        return (
            " Open MPI 5 ignores this variable of Open MPI 4: set PRTE_MCA_prte_default_hostfile "
            "to the same file."
        )
    return ""


def is_certain(environment):
    """Returns whether a hostfile names the hosts of this job, so that using fewer is an error.

    With a scheduler it is no error, because a job may use only a part of an allocation.
    """
    return launchers.mounted_hostfile(environment) is not None
