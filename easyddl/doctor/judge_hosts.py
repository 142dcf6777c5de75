"""Findings about each host: its limits, clock, names, devices and memory."""

import collections
import statistics

from easyddl.doctor.finding import Finding, Level, error, fine, warning
from easyddl.machine.units import bit_rate, byte_rate, seconds, size
from easyddl.runtime import mpi_files

_OPEN_FILES = 1024
_LOCKED_MEMORY = 64 << 20
_CLOCK = 0.1  # seconds
_LOOK_UP = 1.0  # seconds
_SLOW_COPY, _SLOW_ACCESS = 0.5, 4.0  # times the median of the other hosts
_SURE = 200e-9  # seconds; a smaller difference of latencies may be chance


def _is_low(value, least):
    return value is not None and value < least


# For each limit: the level, whether it is too low (by the limits and the hardware), the message and
# the advice.
_LIMITS = (
    (Level.ERROR, lambda limits, _: limits["memfd_error"],
     "the ranks of {host} cannot share memory: {memfd_error}",
     "allow memfd_create in the container's seccomp profile, and mount /proc"),
    (Level.WARNING, lambda limits, _: limits["shortage"], "{host}: {shortage}",
     mpi_files.MORE_SHARED_MEMORY),
    (Level.FINE, lambda limits, hardware: _is_low(limits["cpu_quota"], hardware["usable_cpus"]),
     "the container on {host} may use the time of {cpu_quota:g} CPUs, but sees {usable_cpus}", ""),
    (Level.WARNING, lambda limits, _: _is_low(limits["nofile"], _OPEN_FILES),
     "a process on {host} may open only {nofile} files",
     f"raise the limit: `ulimit -n {_OPEN_FILES * 64}`, or /etc/security/limits.conf"),
    (Level.WARNING,
     lambda limits, hardware: _is_low(limits["memlock"], _LOCKED_MEMORY) and hardware["gpus"],
     "a process on {host} may lock only {memlock} of memory; InfiniBand needs more",
     "raise the limit: `ulimit -l unlimited`, or /etc/security/limits.conf"),
)  # fmt: skip


def limits(facts, ranks):
    """Judges the limits of a process on each host.

    Args:
        facts: Dictionary of the agents' answers to `facts`, by host.
        ranks: Dictionary of the number of ranks, by host.

    Returns:
        List of `Finding`.
    """
    findings = []
    for host, found in facts.items():
        values, hardware = {**found["limits"]}, found["hardware"]
        free = None if "Open MPI" in str(found["software"]["mpi"]) else values["shared_memory"]
        values["shortage"] = mpi_files.shortage(free, ranks[host])
        shown = {**values, "host": host, "usable_cpus": hardware["usable_cpus"]}
        shown["memlock"] = size(values["memlock"] or 0)
        findings += [
            Finding(level, "limits", message.format_map(shown), (host,), advice)
            for level, is_low, message, advice in _LIMITS
            if is_low(values, hardware)
        ]
    if facts and not findings:
        findings.append(fine("limits", "shared memory, open files and locked memory suffice"))
    return findings


def mpi_job(status, output, took):
    """Judges an MPI job that ran on all hosts.

    Args:
        status: Integer. The job's exit status; `None` if it did not end in time.
        output: String. The last lines of its output.
        took: Number. Its duration in seconds.

    Returns:
        `Finding`.
    """
    if status == 0:
        return fine("MPI", f"a job on all hosts started, added up 1 MiB and ended in {took:.1f} s")
    how = f"did not end within {took:.0f} s" if status is None else "failed"
    return error(
        "MPI",
        f"an MPI job on all hosts {how}: {output}",
        "if the links above are fine, MPI may have chosen another network: try `--tcp` of easyddl "
        "run, or name the network device with `--nic`",
    )


def clocks(offsets):
    """Judges the clocks.

    Args:
        offsets: Dictionary by host of pairs in seconds: the offset and its uncertainty.

    Returns:
        List of `Finding`.
    """
    usual = statistics.median(offset for offset, _ in offsets.values()) if offsets else 0.0
    findings = []
    for host, (offset, doubt) in offsets.items():
        ahead = offset - usual
        if abs(ahead) - doubt > _CLOCK:
            findings.append(
                warning(
                    "clocks",
                    f"the clock of {host} is {seconds(abs(ahead))} "
                    f"{'ahead of' if ahead > 0 else 'behind'} the others",
                    "synchronize the clocks, for example with chrony",
                    [host],
                )
            )
    if len(offsets) > 1 and not findings:
        most = max(abs(offset - usual) + doubt for offset, doubt in offsets.values())
        findings.append(fine("clocks", f"the clocks agree within {seconds(most)}"))
    return findings


def names(found, facts):
    """Judges how each host resolves the names of the hosts.

    Args:
        found: Dictionary of the agents' answers to `names`, by host.
        facts: Dictionary of the agents' answers to `facts`, by host.

    Returns:
        List of `Finding`.
    """
    owned = {
        host: {interface["address"] for interface in each["interfaces"]}
        for host, each in facts.items()
    }
    # Hosts that have the same problem with a name share a finding.
    problems = collections.defaultdict(list)
    for host, answers in found.items():
        for name, answer in answers.items():
            for problem in _name(host, name, answer, owned.get(name, set()), len(found) == 1):
                problems[name, problem].append(host)
    findings = [
        warning(
            "names",
            f"{', '.join(hosts)}: {problem}",
            f"correct {name} in the DNS, or in /etc/hosts of {', '.join(hosts)}",
            hosts,
        )
        for (name, problem), hosts in problems.items()
    ]
    if len(found) > 1 and not findings:
        findings.append(fine("names", "every host finds the addresses of all others"))
    return findings


def _name(host, name, answer, owned, is_alone):
    addresses = set(answer["addresses"])
    if answer["error"]:
        yield f"the name {name} is not known ({answer['error']})"
    elif owned and not addresses & owned and not is_alone:
        what = "its own name" if name == host else "the name"
        yield (
            f"{what} {name} resolves to {', '.join(sorted(addresses))}, but {name} has the address "
            f"{', '.join(sorted(owned))}"
        )
    if answer["seconds"] > _LOOK_UP:
        yield f"looking up {name} takes more than {seconds(_LOOK_UP)}"


def devices(facts, measured):
    """Compares the network devices that the links use.

    Args:
        facts: Dictionary of the agents' answers to `facts`, by host.
        measured: Dictionary of `Link` by pair of hosts.

    Returns:
        List of `Finding`.
    """
    used = {}
    for (host, _), link in measured.items():
        for interface in facts[host]["interfaces"] if host in facts else ():
            if interface["address"] == link.interface_address:
                used[host] = interface
    findings = []
    for key, title, shown in (("mtu", "MTU", str), ("speed", "speed", bit_rate)):
        values = {host: interface[key] for host, interface in used.items() if interface[key]}
        usual = statistics.mode(values.values()) if values else None
        findings += [
            warning(
                "devices",
                f"the network device {used[host]['name']} of {host} has {title} {shown(value)}, "
                f"those of other hosts have {shown(usual)}",
                f"set the same {title} on all hosts of a network",
                [host],
            )
            for host, value in values.items()
            if value != usual
        ]
    if used and not findings:
        first = next(iter(used.values()))
        findings.append(fine("devices", f"all network devices have MTU {first['mtu']}"))
    return findings


def memory(measured):
    """Compares the memory of the hosts.

    Args:
        measured: Dictionary of the agents' answers to `memory`, by host.

    Returns:
        List of `Finding`.
    """
    measured = {host: each for host, each in measured.items() if each["copy"]}
    findings = []
    for host in slow_memories(measured):
        copy = byte_rate(measured[host]["copy"])
        findings.append(
            warning(
                "memory",
                f"the memory of {host} is slow: it copies {copy}, an access takes "
                f"{seconds(measured[host]['latency'])}; other hosts: {_usual(measured, host)}",
                "look for other work on the host, missing memory modules and NUMA settings",
                [host],
            )
        )
    if measured and not findings:
        findings.append(fine("memory", f"bandwidth of a copy and latency: {_usual(measured)}"))
    return findings


def slow_memories(measured):
    """Finds the hosts whose memory is slow.

    Args:
        measured: Dictionary of the agents' answers to `memory`, by host.

    Returns:
        List of strings.
    """
    found = []
    for host, own in measured.items():
        others = [each for other, each in measured.items() if other != host and each["copy"]]
        if not others or not own["copy"]:
            continue
        copy = statistics.median(each["copy"] for each in others)
        latency = statistics.median(each["latency"] for each in others)
        late = own["latency"] > max(_SLOW_ACCESS * latency, latency + _SURE)
        if own["copy"] < _SLOW_COPY * copy or late:
            found.append(host)
    return found


def _usual(measured, left_out=None):
    others = [each for host, each in measured.items() if host != left_out]
    copy = statistics.median(each["copy"] for each in others)
    latency = statistics.median(each["latency"] for each in others)
    return f"{byte_rate(copy)}, {seconds(latency)}"
