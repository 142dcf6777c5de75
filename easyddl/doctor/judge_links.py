"""Findings about the network: unreachable ports, bad links, and hosts with bad connections."""

from easyddl.doctor import link_faults
from easyddl.doctor.finding import error, fine, warning
from easyddl.doctor.link_faults import Fault
from easyddl.machine.units import bit_rate, seconds

_FAR = 5e-3  # seconds; a longer round trip is bad, even if all links are alike
_CABLE = "check its cable, port, speed and duplex settings (`ethtool`), and what else uses it"
_ADVICE = {
    Fault.BROKEN: "check the routes and the path MTU (`ping -M do -s 1472`) between them",
    Fault.LOSS: f"{_CABLE}; `ethtool -S` counts damaged packets",
    Fault.LATENCY: "check the route between them (`traceroute`) and queues on the way",
    Fault.RATE: _CABLE,
}


def reachability(hosts, reached):
    """Judges which ports can be reached.

    Args:
        hosts: List of strings.
        reached: Dictionary by pair (from, to) of the answers to `probe.reach`.

    Returns:
        List of `Finding`.
    """
    findings = []
    for host in hosts:
        others = [other for other in hosts if other != host]
        blocked = {a: _blocked(reached.get((a, host))) for a in others}
        blocked = {a: ports for a, ports in blocked.items() if ports}
        if not blocked:
            continue
        ports = sorted({int(port) for ports in blocked.values() for port in ports})
        reason = next(iter(next(iter(blocked.values())).values()))
        from_whom = "any other host" if len(blocked) == len(others) else ", ".join(blocked)
        findings.append(
            error(
                "ports",
                f"the TCP ports {', '.join(map(str, ports))} of {host} cannot be reached from "
                f"{from_whom}: {reason}",
                f"let the firewall of {host} accept all TCP ports from the other hosts, or limit "
                "MPI to open ones (MPICH: MPIR_CVAR_CH3_PORT_RANGE, Open MPI: "
                "btl_tcp_port_min_v4)",
                [host],
            )
        )
    if not findings and len(hosts) > 1:
        findings.append(fine("ports", "every host reaches the ports of every other host"))
    return findings


def links(hosts, measured, left_out=0):
    """Judges the links.

    Args:
        hosts: List of strings. The hosts whose agents were not lost.
        measured: Dictionary of `Link` by pair (from, to).
        left_out: Integer. The number of pairs that were not measured.

    Returns:
        List of `Finding`.
    """
    measured = {pair: link for pair, link in measured.items() if set(pair) <= set(hosts)}
    bad = link_faults.confirmed(measured)
    good = link_faults.reference(measured)
    accused = link_faults.bad_hosts(hosts, measured, bad)
    findings = [_host_finding(host, measured, bad, good) for host in accused]
    for a, b in sorted({tuple(sorted(pair, key=hosts.index)) for pair in bad}):
        if not {a, b} & set(accused):
            findings.append(_link_finding(a, b, measured, bad, good))
    if good.rtt is not None and good.rtt > _FAR:
        findings.append(
            warning(
                "links",
                f"round trips take {seconds(good.rtt)}: the hosts are far from each other",
                "use hosts of one data center: each training step waits for several round trips",
            )
        )
    if not findings and good.rate:
        count = len({frozenset(pair) for pair, link in measured.items() if link.measured})
        alike = f"{count} {'link is' if count == 1 else 'links are'} alike"
        told = f"{alike}: {bit_rate(good.rate)} per TCP stream, {seconds(good.rtt)}"
        findings.append(fine("links", told))
    if left_out:
        findings.append(
            fine("links", f"{left_out} pairs were left out to save time (option --seconds)")
        )
    return findings


def _link_finding(a, b, measured, bad, good):
    told = [
        _told(kind, pair, measured[pair], good)
        for kind in Fault
        for pair in ((a, b), (b, a))
        if kind in bad.get(pair, ())
    ]
    kinds = bad.get((a, b), set()) | bad.get((b, a), set())
    return _finding(kinds, f"the link between {a} and {b} is bad: {'; '.join(told)}", (a, b))


def _host_finding(host, measured, bad, good):
    own = {pair: kinds for pair, kinds in bad.items() if host in pair}
    count = len({frozenset(pair) for pair in own})
    total = len({frozenset(pair) for pair in measured if host in pair})
    kinds = set().union(*own.values())
    example = next(pair for pair, found in own.items() if _worst(kinds) in found)
    told = _told(_worst(kinds), example, measured[example], good)
    message = (
        f"the network connection of {host} is bad: {count} of its {total} links are bad, for "
        f"example {told}"
    )
    return _finding(kinds, message, [host])


def _worst(kinds):
    return next(kind for kind in Fault if kind in kinds)


def _finding(kinds, message, hosts):
    """Returns a finding about links with some kinds of faults."""
    make = error if Fault.BROKEN in kinds else warning
    return make("links", message, _ADVICE[_worst(kinds)], hosts)


def _told(kind, pair, link, good):
    way = f"from {pair[0]} to {pair[1]}"
    if kind is Fault.BROKEN:
        return f"no measurement {way} succeeded ({link.problems[-1]})"
    if kind is Fault.LOSS:
        return f"{100 * link.loss:.1f}% of the packets {way} are lost"
    if kind is Fault.LATENCY:
        return f"round trips {way} take {seconds(link.min_rtt)} (others {seconds(good.rtt)})"
    return f"{bit_rate(link.rate)} {way} (others {bit_rate(good.rate)})"


def _blocked(answer):
    """Returns the ports that cannot be reached, with the reasons."""
    if answer is None:
        return {}
    return {port: reason for port, reason in answer["ports"].items() if reason is not None}
