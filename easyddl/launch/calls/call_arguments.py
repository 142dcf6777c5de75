"""The arguments of `easyddl.run` and `easyddl.Ranks`."""

import math
import operator
import os
import sys
from collections.abc import Mapping

from easyddl.hosts import host_list as host_lists
from easyddl.hosts import launchers
from easyddl.launch.calls import pickling
from easyddl.launch.start import allowed_cpus
from easyddl.runtime import console, validators


def message_of(function, args, kwargs):
    """Returns the settings and the pickle of a call, as a pair."""
    if not callable(function):
        raise TypeError(f"`function` must be callable. Received: {function!r}")
    if not isinstance(args, (tuple, list)):
        raise TypeError(f"`args` must be a tuple, as in args=(x,). Received: args={args!r}")
    if not isinstance(kwargs, (Mapping, type(None))):
        raise TypeError(f"`kwargs` must be a dictionary. Received: kwargs={kwargs!r}")
    pickling.require()
    try:
        call = pickling.dumps((function, tuple(args), dict(kwargs or {})))
    except Exception as error:
        raise TypeError(
            "`function` or its arguments cannot be sent to the ranks: "
            f"{console.sentence(str(error))} Create what cannot be sent, such as open files and "
            "locks, within the function. "
            f"Received: function={function!r}"
        ) from error
    directory = os.getcwd()
    settings = {
        "sources": pickling.sources(function),
        "directory": directory,
        "path": [os.path.join(directory, path) for path in sys.path],
    }
    return settings, call


def check_job(np, hosts, env):
    """Raises an error unless the arguments are right. Returns the environment variables."""
    if isinstance(np, bool) or not isinstance(np, int):
        raise TypeError(f"`np` must be the number of ranks, an integer. Received: np={np!r}")
    if np < 1:
        raise ValueError(f"`np` must be at least 1. Received: np={np}")
    if hosts is not None:
        if not isinstance(hosts, str):
            raise TypeError(f"`hosts` must be a string, as in 'h1:4,h2:4'. Received: {hosts!r}")
        host_lists.parse(hosts, "hosts")
    env = {} if env is None else env
    if not isinstance(env, Mapping) or not all(
        isinstance(each, str) for pair in env.items() for each in pair
    ):
        raise TypeError(f"`env` must be a dictionary of strings. Received: env={env!r}")
    return dict(env)


def check_cpus(cpus, hosts):
    """Raises an error unless the ranks can be limited to some CPUs. Returns the CPUs in order."""
    if cpus is None:
        return None
    try:
        numbers = sorted({operator.index(each) for each in cpus})
    except TypeError:
        raise TypeError(
            "`cpus` must be an iterable of CPU numbers, as in cpus=[0, 1] or cpus=range(4). "
            f"Received: cpus={cpus!r}"
        ) from None
    if not numbers:
        raise ValueError(f"`cpus` must name at least one CPU. Received: cpus={cpus!r}")
    allowed_cpus.check(set(numbers), "cpus")
    if hosts is not None:
        source, asked = "`hosts`", host_lists.parse(hosts, "hosts")
    else:
        scheduler, asked = launchers.allocated() or (None, [])
        source = scheduler and scheduler.name
    allowed_cpus.require_this_host(asked, source, "cpus")
    return numbers


def check_seconds(name, value):
    """Raises an error unless an argument is a positive number of seconds."""
    if not validators.is_number(value) or not 0 < value < math.inf:
        raise ValueError(f"`{name}` must be a positive number of seconds. Received: {value!r}")


def check_options(options):
    """Raises an error unless an argument is a sequence of strings."""
    is_sequence = isinstance(options, (tuple, list))
    if not is_sequence or not all(isinstance(each, str) for each in options):
        raise TypeError(
            "`options` must be a tuple or list of strings, as in options=('--nic', 'ib0'). "
            f"Received: options={options!r}"
        )
