"""Compares the hosts that a job runs on with the hosts that were named for it.

A launcher may ignore the names. If mpirun ignores a hostfile, it starts all ranks on one host, and
the job seems to succeed. For example, Open MPI 5 ignores the variable by which the MPI Operator of
Kubernetes passes the hostfile to Open MPI 4 (https://github.com/kubeflow/trainer/issues/4028).

A name may be an alias, so two names that differ are not a mistake by themselves. They are a mistake
if this host and the reached host resolve the user's name to different addresses.

The functions have these arguments:
    placement: `Placement` that was asked for.
    hellos: Dictionary from each rank to the facts that it reported: `host`, `kernel`, `addresses`,
        `version` and `cpus`.
"""

import collections
import ipaddress
import itertools
import socket

from easyddl.hosts import launchers
from easyddl.hosts.topology_tree import counted
from easyddl.machine import cpu_list


def fewer_than_allocated(environment, size, hosts):
    """Finds out whether a job runs on fewer hosts than a hostfile or a scheduler names for it.

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
    launcher, named = found
    # Each host is filled before the next one.
    slots = itertools.accumulate(host.slots or 1 for host in named)
    needed = min(len(named), 1 + sum(total < size for total in slots))
    used = sorted(set(hosts))
    if len(used) >= needed:
        return None
    variable = launchers.mounted_hostfile(environment)
    source = f"the hostfile of {variable}" if variable else f"the allocation of {launcher.name}"
    names = ", ".join(map(str, named[:8])) + (", ..." if len(named) > 8 else "")
    text = (
        f"The {size} ranks run on {counted(len(used), 'host')} ({', '.join(used)}), but {source} "
        f"has {counted(len(named), 'host')} for them ({names}). mpirun does not read it. Start the "
        "job with `easyddl run`, which passes the hosts to mpirun, or name them with mpirun's "
        "option `-H` or `-hosts`."
    )
    if variable == "OMPI_MCA_orte_default_hostfile":
        text += (
            " Open MPI 5 ignores this variable of Open MPI 4: set PRTE_MCA_prte_default_hostfile "
            "to the same file."
        )
    return text


def problem(placement, hellos, version):
    """Returns the first difference between the ranks that reported and the ranks asked for.

    Their number has been checked before.

    Args:
        placement: `Placement`.
        hellos: Dictionary.
        version: String. The version of easyddl here.

    Returns:
        String, or `None` if there is no difference.
    """
    return _versions(hellos, version) or _hosts(placement, hellos) or _cpus(placement, hellos)


def _versions(hellos, version):
    for rank, hello in sorted(hellos.items()):
        if hello["version"] != version:
            return (
                f"The host {hello['host']} (rank {rank}) has easyddl {hello['version']}, and this "
                f"host has {version}. Install the same version on all hosts."
            )
    return None


def _hosts(placement, hellos):
    """Compares the number of ranks on each host, and the names of the hosts."""
    kernels = collections.defaultdict(list)
    for rank, hello in sorted(hellos.items()):
        kernels[hello["kernel"]].append(rank)
    granted = [len(ranks) for ranks in kernels.values()]
    asked = [host.slots for host in placement.hosts]
    if sorted(granted) != sorted(asked):
        wanted = [f"{host.name} ({counted(host.slots, 'rank')})" for host in placement.hosts]
        used = [
            f"{hellos[ranks[0]]['host']} ({counted(len(ranks), 'rank')})"
            for ranks in kernels.values()
        ]
        difference = (
            f"The job was to run on {', '.join(wanted)}, from {placement.source}, but it runs on "
            f"{', '.join(used)}."
        )
        return f"{difference} {_names_of_one_host(placement, kernels.values())}".rstrip()
    for rank, hello in sorted(hellos.items()):
        name = placement.host_of(rank)
        if not placement.local and _are_different(name, hello, placement, hellos):
            return f"Rank {rank} was to run on {name}, but it runs on {hello['host']}."
    return None


def _names_of_one_host(placement, kernels):
    """Returns a sentence about names whose ranks all run on one host; empty if there are none."""
    whole = {host.name: [] for host in placement.hosts}
    for number, ranks in enumerate(kernels):
        for rank in ranks:
            whole[placement.host_of(rank)].append(number)
    on_one_kernel = {name: each[0] for name, each in whole.items() if len(set(each)) == 1}
    return text_of_one_host(on_one_kernel, ", or the launcher ignores them")


def _cpus(placement, hellos):
    """Returns a message on the first rank that may use CPUs outside of the job's limit."""
    for rank, hello in sorted(hellos.items()):
        if placement.cpus is not None and not placement.cpus.issuperset(hello["cpus"]):
            return (
                f"Rank {rank} may use the CPUs {cpu_list.render(hello['cpus'])}, but `--cpus` "
                f"allows {cpu_list.render(placement.cpus)}: the launcher does not pass the limit "
                "on. Leave out `--cpus`."
            )
    return None


def _are_different(asked, hello, placement, hellos):
    """Returns whether a host is certainly not the one that the user named.

    The user's name may be an alias that only ssh knows. So a host is certainly another one only if
    its address differs, or if it reports the name of another host of the job. A name that several
    hosts report is no evidence.
    """
    if _is_address(asked):
        return asked not in hello["addresses"] and not asked.startswith("127.")
    own = _short(hello["host"])
    others = {_short(host.name) for host in placement.hosts}
    if own == _short(asked) or own not in others:
        return False
    with_own = {each["kernel"] for each in hellos.values() if _short(each["host"]) == own}
    return len(with_own) == 1


def _short(name):
    """Returns a name without its domain."""
    return name.partition(".")[0]


def _is_address(name):
    """Returns whether a name is an IPv4 address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def aliases(placement, hellos):
    """Returns the user's host names that differ from the names that the reached hosts report.

    Args:
        placement: `Placement`.
        hellos: Dictionary from each rank to the facts that it reported.

    Returns:
        Dictionary from the first rank on each of these hosts to the user's name of the host.
    """
    found = {}
    for rank, hello in sorted(hellos.items()):
        name = placement.host_of(rank)
        is_own = _short(name) in (_short(hello["host"]), "localhost") or _is_address(name)
        if not is_own and not placement.local and name not in found.values():
            found[rank] = name
    return found


def text_of_one_host(hosts, otherwise=""):
    """Returns a sentence about names that lead to one host; empty if there are none.

    Args:
        hosts: Dictionary from names to what is equal for equal hosts.
        otherwise: String. Another possible cause, as the end of the sentence.
    """
    names_of = collections.defaultdict(list)
    for name, host in hosts.items():
        names_of[host].append(name)
    names = next((names for names in names_of.values() if len(names) > 1), [])
    return f"The names {', '.join(names)} lead to one host{otherwise}." if names else ""


def contradiction(name, hello, there):
    """Returns a warning if this host and the reached host resolve a name differently.

    Args:
        name: String. The user's name of the host.
        hello: Dictionary. The facts that a rank on the reached host reported.
        there: List of strings. The addresses to which the reached host resolves the name.

    Returns:
        String; `None` if the hosts agree, or one of them cannot resolve the name.
    """
    if any(_is_of(address, hello) for address in there) or not there:
        return None
    here = look_up(name)
    if not here or set(there) & set(here):
        return None
    host = hello["host"]
    return (
        f"the name {name} leads to host {host}, but on {host} it is the name of "
        f"{', '.join(there)}, and here of {', '.join(here)}. Ranks may run on another host than "
        "you want. Correct the name in the DNS, or in /etc/hosts."
    )


def _is_of(address, hello):
    """Returns whether an address is that of a rank's host.

    The host may know itself by its loopback address.
    """
    return address in hello["addresses"] or ipaddress.ip_address(address).is_loopback


def look_up(name):
    """Returns the IPv4 addresses of a name; none if it is not known."""
    try:
        entries = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return sorted({entry[4][0] for entry in entries})
