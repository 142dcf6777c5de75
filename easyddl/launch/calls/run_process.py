"""The command `easyddl run` that starts the ranks of a notebook or script."""

import sys

from easyddl.machine import cpu_list
from easyddl.runtime import command_process, deadlines


def command(size, hosts, variables, cpus, start_timeout, options, calls):
    """Returns the command line that starts a Python module as ranks.

    The module and its arguments follow it.

    Args:
        size: Integer. The number of ranks.
        hosts: String such as `h1:4,h2:4`, or `None` for this host or the scheduler's hosts.
        variables: Names of the environment variables that the ranks need.
        cpus: List of the CPUs that the ranks may use; `None` for those of this process.
        start_timeout: Float, in seconds. `easyddl run` gets less, to tell the reason before.
        options: Sequence of strings. Further options of `easyddl run`.
        calls: Integer. The descriptor of a socket to which the output of calls is sent.
    """
    line = [*command_process.python("easyddl"), "run", "-np", str(size), "--no-prefix", "--quiet"]
    line += ["--start-timeout", str(deadlines.earlier(start_timeout)), "--calls", str(calls)]
    if hosts is not None:
        line += ["-H", hosts]
    if cpus is not None:
        line += ["--cpus", cpu_list.render(cpus)]
    for name in variables:
        line += ["--env", name]
    return [*line, *options, "--", sys.executable, "-m"]
