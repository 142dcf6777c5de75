"""Findings about the order of hosts: what a plan would gain."""

from easyddl.doctor.finding import warning
from easyddl.plan import cost, measured_network, planner

_SIZE = 16e6  # bytes of the allreduce for which times are compared
_MEASURED = 3  # hosts below which there is nothing to plan


def is_worth_a_survey(links):
    """Returns whether some rates are so much higher than others that hosts may form groups.

    Links are measured while others send, and slow ones again alone. So a link that was slow only
    while others sent counts, too.

    Args:
        links: Dictionary of `Link` by pair (from, to).
    """
    rates = [rate for link in links.values() for rate in link.rates]
    hosts = {host for pair in links for host in pair}
    return len(hosts) >= _MEASURED and max(rates, default=0) >= measured_network.CLEAR * min(
        rates, default=0
    )


def gain(survey, racks):
    """Judges whether a plan would be faster than the hosts in their order.

    Args:
        survey: `measured_network.Survey`.
        racks: Dictionary of the racks of hosts, as they are known; empty if they are not.

    Returns:
        List of `Finding`. Empty if the gain is small, or the survey shows no groups.
    """
    found = measured_network.judge(survey)
    if found.graph is None:
        return []
    planned = planner.plan(found.graph, survey.hosts, _SIZE)
    best = planned.allreduce(found.graph, _SIZE)
    given = cost.allreduce(found.graph, _nest(survey.hosts, racks), _SIZE)
    if best.seconds > (1 - planner.LEAST_GAIN) * given.seconds:
        return []
    groups = "; ".join(map(str, found.groups)) or "The links of the hosts differ"
    return [
        warning(
            "plan",
            f"with a plan an allreduce of 16 MB would be {given.seconds / best.seconds:.1f} times "
            f"as fast as with these hosts in their order, by their rates. {groups}",
            f"`easyddl plan -H {','.join(survey.hosts)} -o plan.toml`, then `easyddl run --plan "
            "plan.toml`",
        )
    ]


def _nest(hosts, racks):
    """Returns the hosts in their racks, and in groups of racks, as the engine takes them."""
    members = [((racks.get(host) or "").split("/"), host) for host in hosts]
    while len({tuple(path) for path, _ in members}) > 1:
        groups = {}
        for path, member in members:
            groups.setdefault(tuple(path), []).append(member)
        members = [(path[:-1], tuple(group)) for path, group in groups.items()]
    return tuple(member for _, member in members)
