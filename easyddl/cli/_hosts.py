"""The hosts that the options `-H` and `--hostfile` of a command name."""


def add_arguments(parser, hosts, file="the same, from a hostfile"):
    """Adds `-H` and `--hostfile` with their help."""
    named = parser.add_mutually_exclusive_group()
    named.add_argument("-H", "--hosts", metavar="h1:4,h2:4", help=hosts)
    named.add_argument("--hostfile", metavar="FILE", help=file)


def listed(options):
    """Returns the named hosts.

    Args:
        options: Namespace. `hosts` and `hostfile`, at most one of which is not `None`.

    Returns:
        Pair: the list of `HostSlots`, `None` if no hosts are named; and the option, for messages.

    Raises:
        ValueError: If the hosts or the hostfile are wrong.
    """
    from easyddl.hosts import host_list, hostfile

    if options.hosts is not None:
        return host_list.parse(options.hosts), "-H"
    if options.hostfile is not None:
        return hostfile.read(options.hostfile), f"--hostfile {options.hostfile}"
    return None, "-H"
