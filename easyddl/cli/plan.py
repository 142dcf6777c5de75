"""Plans which hosts form groups, and their order, so that an allreduce costs least on a network.

`easyddl plan -H h1,h2,...` measures the rates between the hosts. With --topology a file describes
the network, and nothing is measured. The command prints the time of an allreduce with the plan and
without, and writes the plan for `easyddl run --plan`. If the measured rates do not show clear
groups of hosts, it says so and proposes nothing.
"""

import argparse
import itertools
import pathlib
import shlex
import sys

from easyddl.cli import _agents, _hosts, _output_files
from easyddl.hosts.topology_tree import counted
from easyddl.launch.output import text_table
from easyddl.machine.units import decimal_size, seconds

_SIZES = tuple(10**exponent for exponent in range(3, 9))  # bytes, of which --explain has the times
_COUNTS = tuple(2**exponent for exponent in range(1, 16))  # of hosts
SUMMARY = "plan the order and the groups of hosts for a network"


def add_arguments(parser):
    """Adds the options of `easyddl plan`."""
    parser.add_argument(
        "--topology", metavar="FILE",
        help="the network: a file whose name ends in .toml, or Slurm's topology.conf (default: "
        "measure it between the hosts of -H or --hostfile)",
    )  # fmt: skip
    _hosts.add_arguments(
        parser, "the hosts of the job, in the order to compare with (default: all of the network)"
    )
    parser.add_argument(
        "--size", type=_quantity("size"), default=16e6, metavar="SIZE",
        help="the bytes of the allreduce, as in '64 MB' (default: 16 MB)",
    )  # fmt: skip
    parser.add_argument(
        "--rate", type=_quantity("rate"), default=1.25e9, metavar="RATE",
        help="the rate of a host's link if FILE is of Slurm, which has no rates (default: "
        "10 Gbit/s)",
    )  # fmt: skip
    parser.add_argument(
        "--uplink", type=_quantity("rate"), metavar="RATE",
        help="the rate of the links between switches if FILE is of Slurm (default: that of --rate)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", metavar="FILE.toml", help="write the plan to a file")
    parser.add_argument(
        "--plot", type=_output_files.picture(".svg"), metavar="FILE.svg",
        help="draw the network with the groups of the plan and the bytes of each link",
    )  # fmt: skip
    parser.add_argument(
        "--explain",
        action="store_true",
        help="also print the bytes that each link carries, the times of other sizes, and those of "
        "fewer hosts",
    )
    _agents.add_arguments(parser, 120)


def _quantity(kind):
    def convert(text):
        from easyddl.plan import network_file

        try:
            return network_file.quantity(text, kind)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{error}. Received: {text!r}") from None

    return convert


def run(options):
    """Runs `easyddl plan`.

    Returns:
        The exit status; 2 if the options or a file are wrong.
    """
    from easyddl.hosts.host_list import HostSlots
    from easyddl.plan import plan_file, planner

    try:
        if problem := _output_files.files_problem(options, ["output", "plot"], ["topology"]):
            raise ValueError(problem)
        listed, source = _hosts.listed(options)
        if options.topology is None:
            graph, groups, reason = _measured(options, listed)
        else:
            graph, groups, reason = _described(options, listed, source), [], ""
    except (ValueError, RuntimeError) as error:
        sys.stderr.write(f"easyddl plan: {error}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("easyddl plan: interrupted; all agents have been ended\n")
        return 130
    if graph is None:
        print(f"Nothing is proposed: {reason}.")
        for path in filter(None, (options.output, options.plot)):
            print(f"{path} is not written.")
        return 0
    listed = listed or [HostSlots(name) for name in graph.hosts]
    hosts = [host.name for host in listed]
    planned = planner.plan(graph, hosts, options.size)
    names = plan_file.group_names(graph, planned.nest)
    lines = list(_report(graph, groups, listed, planned, names, options))
    for argument, write in (("output", _write), ("plot", _plot)):
        path = getattr(options, argument)
        try:
            if path is not None:
                write(path, graph, planned, names, groups, options)
        except OSError as error:
            sys.stderr.write(
                f"easyddl plan: argument --{argument}: {path} cannot be written: {error.strerror}\n"
            )
            return 2
    print("\n".join(lines))
    return 0


def _described(options, listed, source):
    """Returns the `Graph` that a file describes."""
    from easyddl.plan import network_file

    graph = network_file.read(options.topology, options.rate, options.uplink or options.rate)
    for host in listed or ():
        if host.name not in graph.hosts:
            raise ValueError(
                f"`{source}`: the host {host.name} is not in {options.topology}. Add it there "
                f"with its link. Received: {','.join(map(str, listed))}"
            )
    return graph


def _measured(options, listed):
    """Measures the network.

    Returns:
        `measured_network.Judgement`.

    Raises:
        ValueError: If no hosts are named.
        RuntimeError: If a host cannot be reached.
    """
    from easyddl.doctor import examination
    from easyddl.plan import measured_network

    if listed is None:
        raise ValueError(
            "pass the hosts to measure as `-H h1,h2,...` or `--hostfile FILE`, or a description of "
            "the network as `--topology FILE`."
        )
    hosts = [host.name for host in listed]
    with _agents.interruptible(), _agents.progress() as progress:
        survey, errors = examination.survey(hosts, options, progress)
    if survey is None:
        raise RuntimeError("; ".join(f"{each.message} ({each.advice})" for each in errors))
    return measured_network.judge(survey)


def _write(path, graph, planned, names, groups, options):
    from easyddl.plan import plan_file

    algorithms = planned.algorithms(options.size)
    comment = [
        f"A plan for {options.topology or 'measured hosts'}, by `easyddl plan`.",
        f"Chosen for {decimal_size(options.size)}: {_algorithms(algorithms)}.",
        *map(str, groups),
    ]
    plan_file.write(path, planned.nest, names, planned.rules, "\n".join(comment))


def _plot(path, graph, planned, names, groups, options):
    from easyddl.plan import picture

    found = planned.allreduce(graph, options.size)
    title = f"An allreduce of {decimal_size(options.size)} with this plan: {seconds(found.seconds)}"
    lines = picture.draw(graph, planned.nest, names, found.link_bytes, title, decimal_size)
    pathlib.Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _report(graph, groups, listed, planned, names, options):
    from easyddl.plan import cost, partitions, planner

    hosts, size = [host.name for host in listed], options.size
    planned_cost = planned.allreduce(graph, size)
    least, reason = partitions.lower_bound(graph, hosts, size)
    alternatives = {
        "hosts as listed, ring": cost.allreduce(graph, tuple(hosts), size, ["ring"]),
        "hosts as listed, without a plan": cost.allreduce(graph, tuple(hosts), size),
        "planned": planned_cost,
    }
    if groups:
        yield "Groups of hosts, by the rates between them:"
        yield from (f"  {group}" for group in groups)
        yield ""
    yield f"An allreduce of {decimal_size(size)} between {counted(len(hosts), 'host')}:"
    yield ""
    rows = [["", "time", "algorithm of each level"]]
    for name, each in alternatives.items():
        rows.append([name, seconds(each.seconds), _algorithms(each.algorithms)])
    rows.append(["lower bound", seconds(least), reason])
    yield from text_table.lines(rows, left=(0, 2))
    yield ""
    yield "The plan:"
    carried = planned_cost.link_bytes if options.explain else None
    yield from _tree(graph, planned.nest, names, carried)
    if options.explain:
        yield from _switch_links(graph, planned_cost)
        yield "Algorithms of the plan by size:"
        for begin, algorithms in planned.rules:
            yield f"  {f'from {decimal_size(begin)}':18} {_algorithms(algorithms)}"
        yield from _times(graph, planned, size)
    yield ""
    if options.plot is not None:
        yield f"{options.plot} has the picture."
    if planned.nest == tuple(hosts):
        yield (
            f"No order and no groups of these hosts cost {planner.LEAST_GAIN:.0%} less. The plan "
            "has only the algorithms."
        )
    if options.output is None:
        yield "With `-o plan.toml` the plan is written to a file, for"
    else:
        yield f"{options.output} has the plan, for"
    yield "  " + _run_line(listed, options)


def _tree(graph, nest, names, carried, indent="  "):
    """Yields the lines of a nest's groups; with the bytes on the links of hosts if these are given.

    Hosts of a group are one line without the bytes.
    """
    if not isinstance(nest[0], str):
        for child in nest:
            yield f"{indent}{names[child]}"
            yield from _tree(graph, child, names, carried, indent + "  ")
        return
    if carried is None:
        yield indent + " ".join(nest)
        return
    for host in nest:
        sent = sum(carried.get((host, other), 0.0) for other in graph.neighbors[host])
        received = sum(carried.get((other, host), 0.0) for other in graph.neighbors[host])
        yield f"{indent}{host:16} sends {decimal_size(sent)}, receives {decimal_size(received)}"


def _times(graph, planned, size):
    """Yields the lines of two tables: times by size, and by the number of hosts."""
    from easyddl.plan import cost, planner

    def row(label, plan, size):
        ways = (["ring"], None)
        listed = [cost.allreduce(graph, plan.listed, size, way).seconds for way in ways]
        return [label, *map(seconds, (*listed, plan.allreduce(graph, size).seconds))]

    sizes = [row(decimal_size(each), planned, each) for each in _SIZES]
    n = len(planned.listed)
    counts = [
        row(f"{count}", planner.plan(graph, planned.listed[:count], size), size)
        for count in (*itertools.takewhile(lambda count: count < n, _COUNTS), n)
    ]
    by_hosts = f"Times of {decimal_size(size)} by hosts, the first of the list:"
    for title, rows in (("Times by size:", sizes), (by_hosts, counts)):
        yield title
        table = [["", "as listed, ring", "without a plan", "planned"], *rows]
        yield from (f"  {line}" for line in text_table.lines(table))


def _switch_links(graph, planned_cost):
    """Yields a line for each link between switches."""
    between = graph.switch_links()
    if between:
        yield "Links between switches:"
    for link in between:
        for ends in (link.ends, link.ends[::-1]):
            yield f"  {' > '.join(ends):18} {decimal_size(planned_cost.link_bytes.get(ends, 0.0))}"


def _run_line(listed, options):
    """Returns the command that uses the plan."""
    named = ["-H", options.hosts or ",".join(map(str, listed))]
    if options.hostfile:
        named = ["--hostfile", options.hostfile]
    path = options.output or "plan.toml"
    return shlex.join(["easyddl", "run", "--plan", path, *named, "python", "train.py"])


def _algorithms(algorithms):
    return ", then ".join(algorithms)
