"""Decides how many ranks each host runs."""

import dataclasses
import socket

from easyddl.hosts import hostfile, launchers
from easyddl.hosts.host_list import HostSlots
from easyddl.hosts.topology_tree import counted
from easyddl.launch.start import allowed_cpus
from easyddl.machine import cpu_list, hardware


@dataclasses.dataclass(frozen=True)
class Placement:
    """The hosts of a job, in the order of the ranks.

    Attributes:
        hosts: List of `HostSlots`. `slots` is the number of ranks on that host.
        source: String. Where the hosts come from, for messages.
        scheduler: The row of `launchers.LAUNCHERS` of an allocation, else `None`.
        local: Boolean. Whether all ranks run on this host, without any host being named.
        cpus: Set of integers. The CPUs of this host to which the job is limited, else `None`.
        offered: List of `HostSlots`. All hosts that the job may use, with all of their slots.
    """

    hosts: list[HostSlots]
    source: str
    scheduler: launchers.Launcher | None = None
    local: bool = False
    cpus: frozenset[int] | None = None
    offered: list[HostSlots] = dataclasses.field(default_factory=list)

    def __post_init__(self):
        if any(host.slots is None for host in self.offered) or not self.offered:
            object.__setattr__(self, "offered", self.hosts)

    def on(self, names, size=None):
        """Returns a placement on some of the offered hosts.

        Args:
            names: Set of strings. Their names.
            size: Integer. The number of ranks if there are enough slots, else `None`.
        """
        hosts = [host for host in self.offered if host.name in names]
        slots = sum(host.slots for host in hosts)
        hosts = _fill(hosts, min(size or slots, slots), self.source)
        return dataclasses.replace(self, hosts=hosts)

    @property
    def size(self):
        """The number of ranks."""
        return sum(host.slots for host in self.hosts)

    def host_of(self, rank):
        """Returns the name of the host that a rank is to run on."""
        for host in self.hosts:
            if rank < host.slots:
                return host.name
            rank -= host.slots
        raise IndexError(rank)

    def __str__(self):
        ranks = counted(self.size, "rank")
        if self.cpus is not None:
            word = "CPUs" if len(self.cpus) > 1 else "CPU"
            return f"{ranks} on the {word} {cpu_list.render(self.cpus)} of this host"
        if self.local:
            return f"{ranks} on this host"
        return f"{ranks} on {', '.join(map(str, self.hosts))} (from {self.source})"


def place(request, environment):
    """Decides how many ranks each host runs.

    Args:
        request: `Request`.
        environment: Mapping. The environment variables, which may describe an allocation.

    Returns:
        `Placement`.

    Raises:
        ValueError: If the hosts have too few slots, or their number is not known, or if `cpus` is
            given and there are other hosts.
    """
    placed = _place(request, environment)
    if request.cpus is not None:
        allowed_cpus.require_this_host(placed.hosts, placed.source, "--cpus")
    return placed


def _place(request, environment):
    cpus = request.cpus
    if request.hosts is not None:
        hosts = _fill(request.hosts, request.np, request.source)
        return Placement(hosts, request.source, cpus=cpus, offered=request.hosts)
    allocation = launchers.allocated(environment)
    if allocation is None:
        size = request.np or hardware.gpu_count() or hardware.usable_physical_cores(allowed=cpus)
        host = HostSlots(socket.gethostname(), size)
        return Placement([host], "this host", local=True, cpus=cpus)
    scheduler, hosts = allocation
    variable = launchers.mounted_hostfile(environment)
    if variable is not None:  # raise an error for settings that are not passed on
        hostfile.read(environment[variable], variable)
    source = f"the allocation of {scheduler.name}" if scheduler.launch else scheduler.name
    filled = _fill(hosts, request.np, source)
    return Placement(filled, source, scheduler, cpus=cpus, offered=hosts)


def _fill(hosts, size, source):
    """Gives the hosts their ranks, in their order."""
    if any(host.slots is None for host in hosts):
        return _spread(hosts, size, source)
    slots = sum(host.slots for host in hosts)
    if size is None:
        return hosts
    if size > slots:
        raise ValueError(
            f"`-np {size}` asks for more ranks than there are slots: {source} has {slots} "
            f"({', '.join(map(str, hosts))}). Ask for fewer ranks, or give the hosts more slots."
        )
    filled, left = [], size
    for host in hosts:
        filled.append(dataclasses.replace(host, slots=min(host.slots, left)))
        left -= filled[-1].slots
    return [host for host in filled if host.slots]


def _spread(hosts, size, source):
    """Spreads ranks evenly over hosts whose slots are not known."""
    if size is None:
        raise ValueError(
            f"The number of ranks is not known: {source} names hosts without slots. Add `-np N`, "
            f"or slots, as in `{hosts[0].name}:4`. Received: {', '.join(map(str, hosts))}"
        )
    if any(host.slots is not None for host in hosts):
        raise ValueError(
            f"{source} must give either all hosts slots or none. "
            f"Received: {', '.join(map(str, hosts))}"
        )
    each, more = divmod(size, len(hosts))
    spread = [dataclasses.replace(host, slots=each + (i < more)) for i, host in enumerate(hosts)]
    return [host for host in spread if host.slots]
