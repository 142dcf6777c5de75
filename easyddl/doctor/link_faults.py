"""Tells bad links from good ones, by comparison with the other links."""

import dataclasses
import enum

_SLOW = 0.72  # of the reference rate; below it a link is slow
_LATE, _LATE_SECONDS = 4, 1e-3  # times the reference round trip, and at least so much longer
_LOSS, _LOST = 0.003, 4  # the share of packets and their number; both have to be reached
_BAD_HOST = 0.6  # the share of a host's links that are bad, if the host itself is to blame


class Fault(enum.Enum):
    """What is wrong with a link, the worst first."""

    BROKEN = "broken"
    LOSS = "loss"
    LATENCY = "latency"
    RATE = "rate"


@dataclasses.dataclass(frozen=True)
class Reference:
    """What a good link of this network does; `None` where nothing was measured.

    Attributes:
        rate: Number. Bytes per second.
        rtt: Number. Seconds.
    """

    rate: float | None
    rtt: float | None


def reference(links):
    """Finds out what good links do: a quarter of the links is better than this.

    The median would be that of bad links where one of three or four hosts is bad: it has a part in
    half of the links or more.

    Args:
        links: Dictionary of `Link`.

    Returns:
        `Reference`.
    """
    rates = sorted((link.rate for link in links.values() if link.rate), reverse=True)
    rtts = sorted(link.min_rtt for link in links.values() if link.min_rtt)
    return Reference(_quarter(rates), _quarter(rtts))


def faults(link, good, first_look=False):
    """Judges a link.

    Args:
        link: `Link`.
        good: `Reference`.
        first_look: Boolean. Whether a single lost packet is reason enough for a closer look.

    Returns:
        Set of `Fault`.
    """
    found = set()
    if link.is_broken:
        found.add(Fault.BROKEN)
    if link.rate is not None and good.rate and link.rate < _SLOW * good.rate:
        found.add(Fault.RATE)
    late = max(_LATE * good.rtt, good.rtt + _LATE_SECONDS) if good.rtt else None
    if late and link.min_rtt and link.min_rtt > late:
        found.add(Fault.LATENCY)
    least, share = (1, 0.0) if first_look else (_LOST, _LOSS)
    if link.lost >= least and link.loss >= share:
        found.add(Fault.LOSS)
    return found


def confirmed(links):
    """The faults that were seen again.

    Args:
        links: Dictionary of `Link` by pair of hosts.

    Returns:
        Dictionary of sets of `Fault` by pair of hosts, of bad links alone.
    """
    good = reference(links)
    found = {pair: faults(link, good) for pair, link in links.items() if link.confirmed}
    return {pair: kinds for pair, kinds in found.items() if kinds}


def bad_hosts(hosts, links, bad):
    """Finds the hosts most of whose links are bad, so that not the links are to blame.

    Args:
        hosts: List of strings.
        links: Iterable of the pairs that were measured.
        bad: Iterable of the pairs that are bad.

    Returns:
        List of strings.
    """
    all_links = {frozenset(pair) for pair in links}
    rest = {frozenset(pair) for pair in bad}
    accused = []
    while rest:
        innocent = [host for host in hosts if host not in accused]
        shares = {host: _share(host, all_links, rest, accused) for host in innocent}
        worst = max(shares, key=lambda host: (shares[host], -hosts.index(host)), default=None)
        if worst is None or shares[worst] < _BAD_HOST:
            break
        accused.append(worst)
        rest = {link for link in rest if worst not in link}
    return accused


def _share(host, all_links, bad, accused):
    """The share of a host's links that are bad; 0 for a host with fewer than two links."""
    own = [link for link in all_links if host in link and not link & set(accused)]
    return sum(link in bad for link in own) / len(own) if len(own) > 1 else 0.0


def _quarter(values):
    return values[(len(values) - 1) // 4] if values else None
