"""The racks that a plan file gives the hosts of a job."""

from easyddl.plan import cost, plan_file


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
    known = cost.hosts_of(nest)
    found = {host: _known_name(host, known) for host in hosts}
    unknown = [host for host, name in found.items() if name is None]
    if unknown:
        raise ValueError(
            f"`{argument}`: {path} does not know the hosts {', '.join(unknown)} of this job. Make "
            "a plan for all hosts of the job with `easyddl plan`, or leave these hosts out. "
            f"Received: hosts = {', '.join(known)}"
        )
    if not names:
        return ""
    rack_of = dict(zip(known, plan_file.racks_of(nest, names), strict=True))
    return ",".join(rack_of[found[host]] for host in hosts)


def _known_name(host, known):
    """Returns a host's name in a plan, which may lack the domain; `None` if it is not there."""
    if host in known:
        return host
    alike = [name for name in known if name == _short(host) or _short(name) == host]
    return alike[0] if len(alike) == 1 else None


def _short(name):
    return name.partition(".")[0]
