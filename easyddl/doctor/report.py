"""The report of an examination: as text for people, and as JSON for programs."""

import textwrap

from easyddl.doctor import link_faults
from easyddl.doctor.finding import Level
from easyddl.hosts.topology_tree import counted
from easyddl.launch.output import text_table
from easyddl.machine.units import seconds, size

_VERSION = 1  # of the JSON format
_WIDTH = 100
_MATRIX = 12  # the matrix of more hosts would not fit on a line


def as_json(results, topology=None):
    """Converts the results to JSON data.

    Args:
        results: `Results`.
        topology: Dictionary from `topology.describe`, or `None`.

    Returns:
        Dictionary that JSON can represent.
    """
    bad = link_faults.confirmed(results.links)
    return {
        "version": _VERSION,
        "can_start": results.can_start,
        "seconds": results.seconds,
        "findings": [finding.as_json() for finding in results.findings],
        "hosts": [_host_as_json(host, results) for host in results.hosts],
        "links": [
            {
                "from": pair[0],
                "to": pair[1],
                "faults": sorted(kind.value for kind in bad.get(pair, ())),
                **link.as_json(),
            }
            for pair, link in results.links.items()
        ],
        "topology": topology,
    }


def _host_as_json(host, results):
    offset, doubt = results.clocks.get(host, (None, None))
    return {
        "name": host,
        "reached": host in results.facts,
        "clock_offset": offset,
        "clock_uncertainty": doubt,
        "memory": results.memory.get(host),
        **results.facts.get(host, {}),
    }


def as_text(results, topology=None):
    """Returns the report as text.

    Args:
        results: `Results`.
        topology: Dictionary from `topology.describe`, or `None`.

    Returns:
        String of several lines: the findings, the worst first, and then the measurements.
    """
    lines = []
    for finding in results.findings:
        lines += _finding(finding)
    lines += ["", *_hosts(results)]
    if 2 < len(results.facts) <= _MATRIX and results.links:
        lines += ["", *_matrix(results, "Gbit/s", _rate), "", *_matrix(results, "ms", _rtt)]
    if topology:
        lines += ["", topology["tree"]]
    return "\n".join([*lines, "", _verdict(results)])


def _finding(finding):
    mark = finding.level.value if finding.level is Level.FINE else finding.level.value.upper()
    head = f"{mark:<8} {finding.subject:<9} "
    for text, begin in ((finding.message, head), (finding.advice, " " * len(head) + "-> ")):
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent=begin, subsequent_indent=" " * len(begin),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def _hosts(results):
    rows = [["host", "cores", "memory", "GPUs", "copy", "access", "clock", "processor"]]
    for host in results.hosts:
        facts = results.facts.get(host)
        if facts is None:
            rows.append([host, *["-"] * 7])
            continue
        hardware, memory = facts["hardware"], results.memory.get(host) or {}
        copy, latency = memory.get("copy"), memory.get("latency")
        clock = results.clocks.get(host)
        rows.append(
            [
                host,
                str(len(hardware["cores"])),
                size(hardware["memory"]),
                str(len(hardware["gpus"])),
                f"{copy / 1e9:.1f} GB/s" if copy else "-",
                seconds(latency) if latency else "-",
                f"{1e3 * clock[0]:+.1f} ms" if clock else "-",
                hardware["model"] or "-",
            ]
        )
    return text_table.lines(rows, range(len(rows[0])))


def _matrix(results, title, value):
    hosts = [host for host in results.hosts if host in results.facts]
    rows = [[title, *(f"to {host}" for host in hosts)]]
    for a in hosts:
        links = [results.links.get((a, b)) for b in hosts]
        rows.append([f"from {a}", *(value(link) if link else "" for link in links)])
    return text_table.lines(rows, range(len(rows[0])))


def _rate(link):
    return "-" if link.rate is None else f"{8 * link.rate / 1e9:.3g}"


def _rtt(link):
    return "-" if link.min_rtt is None else f"{1e3 * link.min_rtt:.3g}"


def _verdict(results):
    counts = {level: sum(finding.level is level for finding in results.findings) for level in Level}
    told = [
        counted(count, level.value)
        for level, count in counts.items()
        if count and level is not Level.FINE
    ]
    what = "Training can start" if results.can_start else "Training cannot start"
    return f"{what}: {', '.join(told) or 'nothing is wrong'} ({results.seconds:.1f} s)."
