"""Hostfiles: one host on each line, with slots as in Open MPI (`h1 slots=4`) or MPICH (`h1:4`)."""

import collections
import pathlib
import re

from easyddl.hosts import host_list

_COUNTS = ("slots", "max_slots")

# Settings that only other launchers accept in a hostfile, and what to use instead.
_ELSEWHERE = {
    "user": "Write `User {value}` for this host into ~/.ssh/config.",
    "port": "Write `Port {value}` for this host into ~/.ssh/config.",
    "ifname": "Name the network interface with `--nic {value}`.",
    "binding": "easyddl binds each rank to separate cores.",
}


def read(path, argument="--hostfile", is_complete=True):
    """Reads a hostfile.

    If no line has slots, a host has as many slots as lines.

    Args:
        path: String.
        argument: String. The name of the argument or variable that holds the path, for errors.
        is_complete: Boolean. Whether to raise an error for settings that are not passed on to the
            launcher, such as `port=22`. If the launcher reads the file itself, it may use them.

    Returns:
        List of `HostSlots`.

    Raises:
        ValueError: If the file cannot be read, contains no host, or has an invalid line.
    """
    try:
        # Some editors begin a file with a byte order mark.
        text = pathlib.Path(path).read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError as error:
        raise ValueError(
            f"`{argument}` must be a file that lists hosts. {path} cannot be read: {error.strerror}"
        ) from None
    lines = text.splitlines()
    places = [f"{argument} {path}, line {number}" for number in range(1, len(lines) + 1)]
    found = [_host(*each, is_complete) for each in zip(lines, places, strict=True)]
    listed = [host for host in found if host is not None]
    if not listed:
        raise ValueError(f"`{argument}`: {path} names no host. It needs a line such as `h1:4`.")
    if all(host.slots is None for host in listed):
        lines_of = collections.Counter(host.name for host in listed)
        hosts = [host_list.HostSlots(*each) for each in lines_of.items()]
        return listed if len(hosts) == len(listed) else hosts
    return host_list.unique(listed, f"{argument} {path}")


def _host(line, place, is_complete):
    """Returns the host of a line; `None` for an empty line or a comment."""
    words = line.partition("#")[0].split()
    if not words:
        return None
    name, *settings = words
    counts = {}
    if re.fullmatch(r"[^:]+:[^:]*", name):
        name, _, counts["slots"] = name.partition(":")
    for setting in settings:
        key, equals, value = setting.partition("=")
        key = "max_slots" if key == "max-slots" else key
        if not equals:
            raise ValueError(
                f"`{place}`: expected one host on a line, as in `h1:4` or `h1 slots=4`. "
                f"Received: {line.strip()!r}"
            )
        if key in counts:
            raise ValueError(
                f"`{place}`: {key} of host {name} are given twice. Received: {line.strip()!r}"
            )
        if key in _COUNTS:
            counts[key] = value
        else:
            _check_setting(key, value, place, is_complete)
    host_list.check_name(name, place, line.strip())
    for key, value in counts.items():
        if not re.fullmatch(r"[1-9][0-9]*", value):
            raise ValueError(
                f"`{place}`: the {key} of host {name} must be a positive integer. "
                f"Received: {value!r}"
            )
    slots, most = (None if key not in counts else int(counts[key]) for key in _COUNTS)
    _check_limit(most, slots, name, place, is_complete)
    return host_list.HostSlots(name, slots)


def _check_limit(most, slots, name, place, is_complete):
    """Checks `max_slots`. A host with slots never gets more ranks than these."""
    if most is not None and slots is None and is_complete:
        raise ValueError(
            f"`{place}`: `max_slots={most}` is not passed on to the launcher. Write `slots={most}` "
            f"for the host {name}, which then gets at most {most} ranks."
        )
    if most is not None and slots is not None and most < slots:
        raise ValueError(
            f"`{place}`: max_slots of host {name} must not be less than its slots. "
            f"Received: slots={slots}, max_slots={most}"
        )


def _check_setting(key, value, place, is_complete):
    if key not in _ELSEWHERE:
        raise ValueError(f"`{place}`: {key!r} is not a setting of a host. Use `slots=4`.")
    if is_complete:
        advice = _ELSEWHERE[key].format(value=value)
        raise ValueError(f"`{place}`: `{key}={value}` is not passed on to the launcher. {advice}")
