"""The racks that a plan file gives the hosts of a job."""

from easyddl.plan import plan_file


def of_hosts(path, hosts, argument="--plan"):
    """Returns the racks of a job's hosts, as EASYDDL_RACKS names them.

    Args:
        path: String. A plan file. It may have hosts that are not in the job.
        hosts: List of strings. The hosts of the job, in the order of their first ranks.
        argument: String. The name of the argument that holds the path, for errors.

    Returns:
        String, such as `x,x,y,y`, or `a/x,a/y,b/z,b/z` for racks in groups; empty if the plan
        has no groups.

    Raises:
        ValueError: If the file cannot be read, or is wrong, or does not know a host of the job.
    """
    nest, names = plan_file.read(path, argument)
    groups_of = dict(_groups_of(nest, names))
    found = {host: _known_name(host, groups_of) for host in hosts}
    unknown = [host for host, name in found.items() if name is None]
    if unknown:
        raise ValueError(
            f"`{argument}`: {path} does not know the hosts {', '.join(unknown)} of this job. Make "
            "a plan for all hosts of the job with `easyddl plan`, or leave these hosts out. "
            f"Received: hosts = {', '.join(groups_of)}"
        )
    return ",".join("/".join(groups_of[found[host]]) for host in hosts) if names else ""


def _groups_of(nest, names, above=()):
    """Yields each host with the names of the groups that it is in, the outermost first."""
    for child in nest:
        if isinstance(child, str):
            yield child, above
        else:
            yield from _groups_of(child, names, (*above, names[child]))


def _known_name(host, known):
    """Returns a host's name in a plan, which may lack the domain; `None` if it is not there."""
    if host in known:
        return host
    alike = [name for name in known if name == _short(host) or _short(name) == host]
    return alike[0] if len(alike) == 1 else None


def _short(name):
    return name.partition(".")[0]
