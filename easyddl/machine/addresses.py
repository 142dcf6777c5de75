"""The IPv4 addresses of this host."""

import fcntl
import socket
import struct

ADDRESS, MASK = 0x8915, 0x891B  # SIOCGIFADDR and SIOCGIFNETMASK of netdevice(7)


def of_interfaces(only=""):
    """Returns the addresses at which other hosts may reach this host.

    Args:
        only: String. Names of interfaces, separated by commas; empty for all except the loopback.

    Returns:
        List of strings.

    Raises:
        ValueError: If an interface does not exist or has no IPv4 address.
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    found = {name: query(name, ADDRESS) for _, name in socket.if_nameindex()}
    for name in names:
        if found.get(name) is None:
            known = ", ".join(sorted(name for name, address in found.items() if address))
            raise ValueError(
                f"`--nic` must name network interfaces of this host with an IPv4 address ({known})."
                f" Received: {only!r}"
            )
    chosen = names or [name for name in found if not (found[name] or "127.").startswith("127.")]
    return [found[name] for name in chosen]


def query(interface, request):
    """Returns the address or the mask of a network interface; `None` if it has no IPv4 address.

    Args:
        interface: String. The name of the interface.
        request: `ADDRESS` or `MASK`.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, request, struct.pack("256s", interface.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
