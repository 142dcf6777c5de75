"""Hostfiles: a host a line, with its slots as Open MPI (`h1 slots=4`) or MPICH (`h1:4`) do."""

import pathlib
import re

from easyddl.runtime import hosts


def read(path, argument="--hostfile"):
    """Reads a hostfile.

    A host that stands on several lines without slots has as many slots as lines.

    Args:
        path: String.
        argument: String. The name of the argument or variable that holds the path, for errors.

    Returns:
        List of `HostSlots`.

    Raises:
        ValueError: If the file cannot be read, holds no host, or a line is wrong.
    """
    try:
        lines = pathlib.Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"`{argument}` must be a file that lists hosts. {path} cannot be read: {reason}"
        ) from None
    found = [_host(line, number, path, argument) for number, line in enumerate(lines, 1)]
    listed = [host for host in found if host is not None]
    if not listed:
        raise ValueError(f"`{argument}`: {path} names no host. It needs a line such as `h1:4`.")
    if all(host.slots is None for host in listed):
        names = [host.name for host in listed]
        return listed if len(set(names)) == len(names) else hosts.merged(names)
    return hosts.unique(listed, f"{argument} {path}")


def _host(line, number, path, argument):
    """The host of a line; `None` for an empty line or a comment."""
    words = line.partition("#")[0].split()
    if not words:
        return None
    name, *settings = words
    place = f"{argument} {path}, line {number}"
    slots = None
    if re.fullmatch(r"[^:]+:[0-9]+", name):
        name, _, slots = name.partition(":")
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ValueError(
                f"`{place}`: expected one host a line, as in `h1:4` or `h1 slots=4`. "
                f"Received: {line.strip()!r}"
            )
        if key == "slots":
            slots = value
        elif key not in ("max_slots", "max-slots", "user", "port", "binding", "ifname"):
            raise ValueError(f"`{place}`: {key!r} is no setting of a host: use `slots=4`.")
    hosts.check_name(name, place, line.strip())
    if slots is None:
        return hosts.HostSlots(name)
    if not re.fullmatch(r"[1-9][0-9]*", slots):
        raise ValueError(
            f"`{place}`: the slots of host {name} must be a positive integer. Received: {slots!r}"
        )
    return hosts.HostSlots(name, int(slots))
