"""The rack of each host, from EASYDDL_RACKS or from Slurm's topology of switches."""

import os
import re
import subprocess

from easyddl.hosts import host_list

_SECONDS = 10  # for `scontrol`, which asks Slurm's controller


def of_hosts(names, named=None):
    """Returns the racks of some hosts. In a Slurm job without EASYDDL_RACKS, it runs `scontrol`.

    Args:
        names: List of strings. The names of the hosts, in the order of their first ranks.
        named: String. The racks in the form of EASYDDL_RACKS, by default its value.

    Returns:
        List of strings, by host, as of `parse`; `None` if the racks are not known. EASYDDL_RACKS is
        ignored if it is wrong.
    """
    named = os.environ.get("EASYDDL_RACKS", "").strip() if named is None else named
    if named:
        try:
            return parse(named, len(names))
        except ValueError:
            return None
    if "SLURM_JOB_ID" not in os.environ:
        return None
    try:
        switches = of_topology(_show_topology())
    except ValueError:
        return None
    racks = [switches.get(host, switches.get(host.split(".")[0])) for host in names]
    return None if None in racks else racks


def parse(text, count):
    """Reads the racks of some hosts.

    Args:
        text: String. The rack of each host, separated by commas, such as `x,x,y,y`. A name may have
            parts for larger groups, the outermost first, such as `aisle/rack`.
        count: Integer. The number of hosts.

    Returns:
        List of strings, by host.

    Raises:
        ValueError: If a name is missing or empty, or the names have different numbers of parts.
    """
    paths = [[part.strip() for part in rack.split("/")] for rack in text.split(",")]
    if len(paths) != count or not all(map(all, paths)):
        raise ValueError(f"must name a rack for each of the {count} hosts. Received: {text!r}")
    if len(set(map(len, paths))) > 1:
        raise ValueError(
            "must name all racks in as many parts, the largest group first, as in "
            f"a/x,a/y,b/z. Received: {text!r}"
        )
    return ["/".join(path) for path in paths]


def of_topology(text):
    """Returns the leaf switch, or the block, of each host.

    Args:
        text: String. The output of `scontrol show topology`: a line for each switch, such as
            `SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[0-3]`, or for each block of the block
            topology, such as `BlockName=b0 BlockIndex=0 Nodes=tux[0-3]`. Switches of other levels
            connect switches.

    Returns:
        Dict of strings by the name of the host. Empty if the text has no such line.
    """
    found = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S+)", line))
        if "BlockName" in fields:
            rack = fields["BlockName"]
        elif fields.get("Level") == "0" and "SwitchName" in fields:
            rack = fields["SwitchName"]
        else:
            continue
        names = fields.get("Nodes", "(null)")  # "(null)" means a switch without hosts
        for name in [] if names == "(null)" else host_list.expand_names(names):
            found.setdefault(name, rack)
    return found


def _show_topology():
    """Returns the output of `scontrol show topology`; empty if it fails."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "topology"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout if done.returncode == 0 else ""
