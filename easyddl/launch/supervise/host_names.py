"""Compares the host names that the user gave with the names that the reached hosts report.

A name may be an alias, so two names that differ are not a mistake by themselves. They are a mistake
if this host and the reached host resolve the user's name to different addresses.
"""

import collections
import ipaddress
import socket
import threading


def short(name):
    """Returns a name without its domain."""
    return name.partition(".")[0]


def is_address(name):
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
        is_alias = short(name) not in (short(hello["host"]), "localhost") and not is_address(name)
        if is_alias and not placement.local and name not in found.values():
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


class Lookup:
    """A name lookup in a thread, so that a silent name server delays nothing else.

    Args:
        name: String.

    Attributes:
        addresses: List of strings, once they are known; `None` before.
    """

    def __init__(self, name):
        self.addresses = None
        threading.Thread(target=self._run, args=(name,), daemon=True).start()

    def _run(self, name):
        self.addresses = look_up(name)
