"""Examines the hosts of a job and the links between them, before training starts.

`easyddl doctor -H h1,h2` or `--hostfile FILE` examines these hosts. Without these options it
examines the hosts of this Slurm, PBS or LSF allocation, and without an allocation this host. The
exit status is 0 if training can start, and 1 if it cannot.
"""

import contextlib
import json
import signal
import sys

from easyddl.cli import _numbers

SUMMARY = "examine hosts and the links between them, and report problems"


def add_arguments(parser):
    """Adds the arguments of `easyddl doctor`."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-H", dest="hosts", metavar="HOSTS", help="the hosts, such as h1,h2:4,h3")
    where.add_argument("--hostfile", metavar="FILE", help="a file with a host on each line")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument(
        "--rsh", metavar="PROGRAM", help="the program that starts commands on a host, such as ssh"
    )
    parser.add_argument(
        "--launcher",
        choices=("auto", "hydra", "openmpi", "srun"),
        default="auto",
        help="as for easyddl run (default: auto)",
    )
    parser.add_argument("--nic", metavar="NAMES", help="as for easyddl run")
    parser.add_argument(
        "--racks", metavar="NAMES", help="the rack of each host, for example x,x,y,y"
    )
    parser.add_argument(
        "--seconds",
        type=_numbers.seconds_above_0,
        default=60.0,
        metavar="S",
        help="the time to measure links; links for which it is too short are left out "
        "(default: 60)",
    )
    parser.add_argument(
        "--start-timeout",
        type=_numbers.seconds_above_0,
        default=30.0,
        metavar="S",
        help="the time after which a host that did not answer counts as unreachable (default: 30)",
    )


def run(options):
    """Examines the hosts and prints the report.

    Args:
        options: Namespace. The parsed arguments.

    Returns:
        The exit status.
    """
    from easyddl.doctor import agent_start, examination, report, topology

    try:
        hosts = _hosts(options)
    except ValueError as error:
        options.fail(str(error))
    racks = _racks(options, hosts)
    how = agent_start.StartOptions(
        options.launcher, options.rsh, options.nic, options.start_timeout
    )
    try:
        with _interruptible(), _progress() as progress:
            names = [host.name for host in hosts] if hosts else None
            results = examination.examine(names, how, options.seconds, progress)
    except KeyboardInterrupt:
        print("easyddl doctor: interrupted; all agents have been ended", file=sys.stderr)
        return 130
    slots = [host.slots for host in hosts] if hosts else None
    described = topology.describe(results, racks, slots)
    if options.json:
        print(json.dumps(report.as_json(results, described), indent=1))
    else:
        print(report.as_text(results, described))
    return 0 if results.can_start else 1


def _hosts(options):
    """Returns the `HostSlots` to examine; `None` for this host alone."""
    from easyddl.hosts import host_list, hostfile, launchers

    if options.hosts is not None:
        found = host_list.parse(options.hosts)
    elif options.hostfile is not None:
        found = hostfile.read(options.hostfile)
    else:
        allocation = launchers.allocated()
        if allocation is None:
            return None
        found = allocation[1]
    return found


def _racks(options, hosts):
    """Returns the rack of each host; `None` if they are not known."""
    from easyddl.hosts import racks as known

    if options.racks is None:
        return known.of_hosts([host.name for host in hosts]) if hosts else None
    racks = [name.strip() for name in options.racks.split(",")]
    count = len(hosts or [None])
    if len(racks) != count or not all(racks):
        options.fail(
            f"argument --racks: must name a rack for each of the {count} hosts. "
            f"Received: {options.racks!r}"
        )
    return racks


@contextlib.contextmanager
def _interruptible():
    """Returns a context in which SIGTERM and SIGHUP act like Ctrl-C, to end the agents."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = {
        each: signal.signal(each, interrupt)
        for each in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(each) is not signal.SIG_IGN  # nohup makes SIGHUP ignored
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def _progress():
    """Returns a context that shows progress on one line of a terminal, and clears it at the end.

    Yields:
        Function of a string that describes the current activity.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return

    def show(text):
        sys.stderr.write(f"\r\033[K{text[:78]}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\033[K")
