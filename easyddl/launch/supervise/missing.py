"""Messages about the hosts of a job whose ranks have not reported."""

import socket


def hosts(placement, present):
    """Returns the ranks that are missing, by the name of their host.

    Args:
        placement: `Placement`.
        present: Container of the ranks that have reported.

    Returns:
        Dictionary from names to lists of integers, in the order of the ranks.
    """
    absent = {}
    for number in range(placement.size):
        if number not in present:
            absent.setdefault(placement.host_of(number), []).append(number)
    return absent


def text(absent):
    """Returns a text that lists the missing ranks by host.

    Args:
        absent: Dictionary that `hosts` has returned.
    """
    if not absent:
        return "a rank has not made its second connection."
    told = []
    for host, numbers in absent.items():
        listed = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
        told.append(f"rank{'s' * (len(numbers) > 1)} {listed} on host {host} did not report")
    words = "; ".join(told[:8]) + (f"; and {len(told) - 8} more hosts" if len(told) > 8 else "")
    return f"{words}."


def lookup_error(host):
    """Returns a name that cannot be looked up, and the reason; empty for another name."""
    try:
        socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        return f"{host} ({error.strerror or error})"
    return ""
