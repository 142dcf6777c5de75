"""The CPUs to which a job is limited: `easyddl run --cpus`, and `cpus` of `easyddl.Ranks`.

The launcher and the ranks inherit the limit from the process that starts them, so all of them must
run on its host.
"""

import os

from easyddl.hosts import host_list
from easyddl.machine import cpu_list


def read(text):
    """Reads the list of `--cpus`, all of which this process may use.

    Args:
        text: String, such as `0-3,8`.

    Returns:
        Frozen set of integers.

    Raises:
        ValueError: If the text is not such a list, or this process may not use all of them.
    """
    cpus = cpu_list.parse(text)
    if not cpus:
        raise ValueError(
            f"`--cpus` must be a list of CPU numbers, as in `0-3,8`. Received: {text!r}"
        )
    check(cpus, "--cpus")
    return cpus


def check(cpus, argument):
    """Raises an error unless this process may use all of some CPUs.

    Args:
        cpus: Set of integers.
        argument: String. The name of the argument, for the error.
    """
    own = os.sched_getaffinity(0)
    if not cpus <= own:
        raise ValueError(
            f"`{argument}` must name CPUs that this process may use, which are "
            f"{cpu_list.render(own)}. Received: {cpu_list.render(cpus)}"
        )


def require_this_host(asked, source, argument):
    """Raises an error if ranks may run on other hosts, which do not inherit the limit.

    Args:
        asked: List of `HostSlots`.
        source: String. Where the hosts come from, for the error.
        argument: String. The name of the argument, for the error.
    """
    others = [host for host in asked if not host_list.is_this_host(host.name)]
    if others:
        raise ValueError(
            f"`{argument}` limits ranks on this host alone, but {source} has other hosts. "
            f"Leave out `{argument}`, or name this host alone, as in `localhost:2`. "
            f"Received: {','.join(map(str, asked))}"
        )
