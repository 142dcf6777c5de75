"""Examines the hosts of a job and the links between them, before training starts.

`easyddl doctor -H h1,h2` or `--hostfile FILE` examines these hosts. Without these options it
examines the hosts of this Slurm, PBS or LSF allocation, and without an allocation this host. The
exit status is 0 if training can start, and 1 if it cannot.
"""

import json
import sys

from easyddl.cli import _agents, _hosts

SUMMARY = "examine hosts and the links between them, and report problems"


def add_arguments(parser):
    """Adds the arguments of `easyddl doctor`."""
    _hosts.add_arguments(parser, "the hosts to examine, such as h1,h2:4,h3")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--racks",
        metavar="NAMES",
        help="the rack of each host, for example x,x,y,y, or a/x,a/y,b/z with aisles",
    )
    _agents.add_arguments(parser, 60)


def run(options):
    """Examines the hosts and prints the report.

    Args:
        options: Namespace. The parsed arguments.

    Returns:
        The exit status.
    """
    from easyddl.doctor import examination, report, topology
    from easyddl.hosts import launchers

    try:
        listed, _ = _hosts.listed(options)
        hosts = listed or (launchers.allocated() or (None, []))[1]
    except ValueError as error:
        options.fail(str(error))
    names = [host.name for host in hosts] or None
    racks = _racks(options, names)
    slots = {host.name: host.slots for host in hosts}
    try:
        with _agents.interruptible(), _agents.progress() as progress:
            results = examination.examine(names, options, progress, racks, slots)
    except KeyboardInterrupt:
        print("easyddl doctor: interrupted; all agents have been ended", file=sys.stderr)
        return 130
    described = topology.describe(results, racks)
    if options.json:
        print(json.dumps(report.as_json(results, described), indent=1))
    else:
        print(report.as_text(results, described))
    return 0 if results.can_start else 1


def _racks(options, names):
    """Returns the rack of each host, or of this one; `None` if it is not known."""
    from easyddl.hosts import racks as known

    if options.racks is None:
        return known.of_hosts(names) if names else None
    try:
        return known.parse(options.racks, len(names or [None]))
    except ValueError as error:
        options.fail(f"argument --racks: {error}")
