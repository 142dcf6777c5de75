"""Which hosts of a job have not reported, and what to look at."""

import socket


def text(placement, ranks):
    """Says which ranks are missing, host by host.

    Args:
        placement: `Placement`.
        ranks: Iterable of the `Rank`s that have reported.
    """
    present = {rank.number for rank in ranks}
    absent = {}
    for number in range(placement.size):
        if number not in present:
            absent.setdefault(placement.host_of(number), []).append(number)
    if not absent:
        return "a rank has not made its second connection."
    told = []
    for host, numbers in absent.items():
        listed = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
        told.append(f"rank{'s' * (len(numbers) > 1)} {listed} on host {host} did not report")
    words = "; ".join(told[:8]) + (f"; and {len(told) - 8} more hosts" if len(told) > 8 else "")
    return f"{words}.{advice(placement, list(absent))}"


def advice(placement, hosts=None):
    """What to look at.

    Args:
        placement: `Placement`.
        hosts: List of the names of hosts that have not reported. Defaults to `None`, for all.
    """
    if placement.local or placement.scheduler is not None:
        return ""  # nobody named the hosts, and ssh may not be what reaches them
    hosts = hosts or [host.name for host in placement.hosts]
    reasons = {host: _lookup(host) for host in hosts}
    unknown = [f"{host} ({reason})" for host, reason in reasons.items() if reason]
    if unknown:
        return f" This host cannot look up {', '.join(unknown)}: is the name right?"
    return (
        f" Try `ssh {hosts[-1]} true`, which must not ask for a password, and look for this Python "
        "and easyddl in the same place there. `easyddl doctor` examines the hosts."
    )


def _lookup(host):
    """Why a name cannot be looked up; `None` if it can."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return error.strerror or str(error)
    return None
