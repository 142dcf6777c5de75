"""Distinguishes bad links from good links by comparing them."""

import dataclasses
import enum

_SLOW = 0.72  # a link is slow if its rate is less than this part of the reference rate
_LATE, _LATE_SECONDS = 4, 1e-3  # a bad round trip: this multiple, and this many seconds longer
_LOSS, _LOST = 0.003, 4  # a lossy link: at least this share, and this number, of lost packets
_BAD_HOST = 0.6  # a host is the cause if at least this share of its links is bad


class Fault(enum.Enum):
    """The kinds of faults of a link, the worst first."""

    BROKEN = "broken"
    LOSS = "loss"
    LATENCY = "latency"
    RATE = "rate"


@dataclasses.dataclass(frozen=True)
class Reference:
    """The properties of a good link of this network; `None` if nothing was measured.

    Attributes:
        rate: Number. Bytes per second.
        rtt: Number. The round-trip time in seconds.
    """

    rate: float | None
    rtt: float | None


def reference(links):
    """Computes the quartile of the links: a quarter of them is better than this.

    The median would not do. If one of three or four hosts is bad, at least half of the links lead
    to that host, so the median could belong to a bad link.

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
        first_look: Boolean. Whether a single lost packet already counts as a fault, so that the
            link is measured again.

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
    """Returns the faults that a repeated measurement confirmed.

    Args:
        links: Dictionary of `Link` by pair of hosts.

    Returns:
        Dictionary of sets of `Fault` by pair of hosts. It contains bad links only.
    """
    good = reference(links)
    found = {pair: faults(link, good) for pair, link in links.items() if link.confirmed}
    return {pair: kinds for pair, kinds in found.items() if kinds}


def bad_hosts(hosts, links, bad):
    """Finds hosts of which most links are bad, so that the host is the cause, not a link.

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
    """Returns the share of bad links among a host's links; 0 if it has fewer than two."""
    own = [link for link in all_links if host in link and not link & set(accused)]
    return sum(link in bad for link in own) / len(own) if len(own) > 1 else 0.0


def _quarter(values):
    return values[(len(values) - 1) // 4] if values else None
