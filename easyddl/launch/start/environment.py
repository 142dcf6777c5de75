"""Which environment variables the ranks get from the process that starts them."""

# The launchers set these for each rank. The values in this process belong to another job.
_OF_A_LAUNCHER = (
    "FLUX_",
    "HYDI_",
    "JSM_",
    "MPI_LOCAL",
    "OMPI_",
    "PALS_",
    "PMI",
    "PRTE_",
    "SLURM",
    "_EASYDDL_",
    "EASYDDL_LAUNCH",
    "EASYDDL_START",
)

# These belong to a login on one host.
_OF_A_SESSION = (
    "DBUS_",
    "DISPLAY",
    "HOSTNAME",
    "OLDPWD",
    "PWD",
    "SHLVL",
    "SSH_",
    "STY",
    "TMUX",
    "XAUTHORITY",
    "XDG_",
    "_",
)

# Another job that a rank starts would overwrite the files of the first, or has other hosts.
_OF_ONE_JOB = ("EASYDDL_HOST_ORDER", "EASYDDL_RACKS", "EASYDDL_TIMELINE")

# Python and the launcher's programs need these before a rank has connected to this process.
BEFORE_START = ("EASYDDL_LAUNCH", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH")


def forwarded(environment, request):
    """Returns the variables that every rank gets, by name.

    Without `PYTHONHASHSEED` each process would have its own hashes of texts. A set of labels would
    then have another order on each rank, and the number of a label another meaning.

    Args:
        environment: Mapping. The environment of this process.
        request: `Request`. Its settings come last.

    Returns:
        Dictionary.
    """
    ours = {name: value for name, value in environment.items() if not _stays(name)}
    given = {"PYTHONHASHSEED": "0", **ours, **network(request), **request.environment}
    return given | {f"_{name}": given[name] for name in _OF_ONE_JOB if name in given}


def leave_outer_job(environment):
    """Removes what belongs to the job whose rank started this process, if it is unchanged.

    Args:
        environment: Mutable mapping. The environment of this process.
    """
    for name in _OF_ONE_JOB:
        if environment.get(name) == environment.get(f"_{name}"):
            environment.pop(name, None)


def _stays(name):
    return name.startswith(_OF_A_LAUNCHER) or any(
        name.startswith(other) if other.endswith("_") and other != "_" else name == other
        for other in _OF_A_SESSION
    )


def network(request):
    """Returns the variables that make each MPI and NCCL use the network of `--nic` and `--tcp`."""
    chosen = {}
    if request.tcp:
        # libfabric's and UCX's, which MPICH and Intel MPI send by; Open MPI has options.
        chosen |= {
            "MPIR_CVAR_CH4_NETMOD": "ofi",
            "FI_PROVIDER": "tcp",
            "UCX_TLS": "tcp,self",
            "NCCL_IB_DISABLE": "1",
            "NCCL_NET": "Socket",
        }
    if request.nic:
        first = request.nic.split(",")[0]
        chosen |= {
            "FI_TCP_IFACE": first,
            "UCX_NET_DEVICES": request.nic,
            "NCCL_SOCKET_IFNAME": request.nic,
            "GLOO_SOCKET_IFNAME": first,
        }
    return chosen


def variables(texts, environment):
    """Reads the texts of `--env`: `NAME=VALUE`, or `NAME` for the value of this process.

    Raises:
        ValueError: If a text is neither.
    """
    read = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not name.replace("_", "a").isalnum() or name[0].isdigit():
            raise ValueError(f"`--env` must be NAME=VALUE or NAME. Received: {text!r}")
        if not equals and name not in environment:
            raise ValueError(
                f"`--env {name}` passes the value of a variable that is not set here. Set it, or "
                f"write `--env {name}=VALUE`."
            )
        read[name] = value if equals else environment[name]
    return read
