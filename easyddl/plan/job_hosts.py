"""The hosts of a job in a plan file: their racks, their order, and the algorithms between them."""

from easyddl.plan import cost, plan_file

# The variables that hold what a plan file holds, and their names in messages.
_SAME = {
    "EASYDDL_RACKS": "EASYDDL_RACKS (option --racks)",
    "EASYDDL_HOST_ORDER": "EASYDDL_HOST_ORDER",
}


def of_hosts(path, hosts, argument, environment):
    """Returns the racks and the order of a job's hosts, and the algorithms between them.

    Args:
        path: String. A plan file. It may have hosts that are not in the job.
        hosts: List of strings. The hosts of the job, in the order of their first ranks, which is
            that of their numbers.
        argument: String. The name of the argument that holds the path, for errors.
        environment: Dict. The environment variables of the job.

    Returns:
        Dict of arguments of `_core.World`.

        - `racks`: the rack of each host, as EASYDDL_RACKS names them, such as `x,x,y,y`, or
          `a/x,a/y,b/z,b/z` for racks in groups; empty if the plan has no groups.
        - `host_order`: the numbers of the hosts in the order of the plan, as EASYDDL_HOST_ORDER has
          them, such as `0,2,1,3`.
        - `algorithm`: the rules of the algorithms, as EASYDDL_ALGORITHM has them, such as
          `direct/whole,100000:direct/ring`; empty if the plan has none.

    Raises:
        ValueError: If the file cannot be read, or is wrong, or does not know a host of the job, or
            if the environment names racks or an order, too.
    """
    for name, shown in _SAME.items():
        if value := environment.get(name, "").strip():
            raise ValueError(
                f"`{argument}` and {shown} both describe the hosts. Set only one of them. "
                f"Received: {path!r} and {value!r}"
            )
    nest, names, rules = plan_file.read(path, argument)
    known = cost.hosts_of(nest)
    found = {host: _known_name(host, known) for host in hosts}
    unknown = [host for host, name in found.items() if name is None]
    if unknown:
        raise ValueError(
            f"`{argument}`: {path} does not know the hosts {', '.join(unknown)} of this job. Make "
            "a plan for all hosts of the job with `easyddl plan`, or leave these hosts out. "
            f"Received: hosts = {', '.join(known)}"
        )
    alike = [host for host in hosts if list(found.values()).count(found[host]) > 1]
    if alike:
        raise ValueError(
            f"`{argument}`: {path} has one host for the hosts {', '.join(alike)} of this job. Name "
            f"the hosts of the plan with their domains. Received: hosts = {', '.join(known)}"
        )
    order = sorted(range(len(hosts)), key=lambda number: known.index(found[hosts[number]]))
    racks = plan_file.racks_of(nest, names)
    algorithms = [(f"{begin}:" if begin else "") + "/".join(levels) for begin, levels in rules]
    return {
        "racks": ",".join(racks[found[host]] for host in hosts if racks),
        "host_order": ",".join(map(str, order)),
        "algorithm": ",".join(algorithms),
    }


def _known_name(host, known):
    """Returns a host's name in a plan, which may lack the domain; `None` if it is not there."""
    if host in known:
        return host
    alike = [name for name in known if name == _short(host) or _short(name) == host]
    return alike[0] if len(alike) == 1 else None


def _short(name):
    """Returns a name without its domain. An address has none."""
    return name if name.replace(".", "").isdigit() else name.partition(".")[0]
