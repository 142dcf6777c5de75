"""Compares the hosts that a job runs on with those that its hostfile or scheduler names.

An mpirun that does not read a setting starts all ranks on one host, and the job seems to succeed:
Open MPI 5 ignores the variable by which Kubernetes' MPI Operator passes the hostfile to Open MPI 4
(https://github.com/kubeflow/trainer/issues/4028).
"""

from easyddl.runtime import launchers


def problem(environment, size, hosts):
    """Finds out whether a job runs on fewer hosts than it needs to.

    Args:
        environment: Mapping. The environment variables of this rank.
        size: Integer. The number of ranks.
        hosts: List with the name of each rank's host.

    Returns:
        String, or `None` if there is no difference, or nothing names hosts.

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
        f"The {size} ranks run on {_count(len(granted))} ({', '.join(granted)}), but "
        f"{_source(asked_by, environment)} has {_count(len(asked))} for them ({names}). The mpirun "
        "does not read it. Start the job with `easyddl run`, which passes the hosts on, or name "
        f"them to mpirun by `-H` or `-hosts`.{_cause(environment)}"
    )


def _needed(asked, size):
    """How many of the hosts the ranks need, if each host is filled before the next."""
    needed = 0
    for host in asked:
        if size <= 0:
            break
        size -= host.slots or 1
        needed += 1
    return needed


def _count(hosts):
    return f"{hosts} host{'s' * (hosts != 1)}"


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
    """Whether the hosts were named for this very job, by a hostfile, so that fewer are an error.

    A script may use a part of an allocation.
    """
    return launchers.mounted_hostfile(environment) is not None
