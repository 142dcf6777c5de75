"""The network devices of this host, and how it resolves the names of hosts."""

import concurrent.futures
import pathlib
import socket
import time

from easyddl.machine import addresses

_DEVICES = pathlib.Path("/sys/class/net")
_AT_ONCE = 32  # names that are looked up


def interfaces():
    """Finds the network devices that have an IPv4 address, other than the loopback.

    Returns:
        List of dictionaries: `name`, `address`, `mask`, `mtu`, and `speed` in bytes per second, or
        `None` if the device does not report it.
    """
    found = []
    for _, name in socket.if_nameindex():
        address = addresses.query(name, addresses.ADDRESS)
        if address is None or address.startswith("127."):
            continue
        mtu, speed = _number(name, "mtu"), _number(name, "speed")
        found.append(
            {
                "name": name,
                "address": address,
                "mask": addresses.query(name, addresses.MASK),
                "mtu": mtu,
                "speed": speed * 125_000 if speed and speed > 0 else None,
            }
        )
    return found


def look_up(names):
    """Looks up the addresses of hosts.

    Args:
        names: List of strings.

    Returns:
        Dictionary by name: `addresses` (a list of strings), `error` (a string or `None`) and
        `seconds`, the time that it took.
    """
    # A name server that does not answer takes many seconds for each name.
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(names, pool.map(_looked_up, names), strict=True))


def _looked_up(name):
    start = time.monotonic()
    found, problem = [], None
    try:
        entries = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
        found = list(dict.fromkeys(entry[4][0] for entry in entries))
    except OSError as error:
        problem = str(error.strerror or error)
    return {"addresses": found, "error": problem, "seconds": time.monotonic() - start}


def _number(device, name):
    try:
        return int((_DEVICES / device / name).read_text())
    except (OSError, ValueError):  # a device that is down does not report its speed
        return None
