"""Findings about the software and the processors of the hosts, which should be the same on all."""

import collections

from easyddl.doctor.finding import Finding, Level, error, fine

_REINSTALL = "install the same version on all hosts, best in one environment that all of them use"
_ALIKE = "use hosts of the same kind: otherwise each step takes as long as on the slowest host"

# For each fact: its section and name, its title, the level of a difference, and advice.
_FACTS = (
    ("software", "easyddl", "easyddl", Level.ERROR, _REINSTALL),
    ("software", "keras", "Keras", Level.ERROR, _REINSTALL),
    ("software", "backend", "the Keras backend", Level.ERROR,
     "set KERAS_BACKEND to the same backend on all hosts (`easyddl run --env KERAS_BACKEND=...`)"),
    ("software", "backend_version", "the version of the Keras backend", Level.ERROR, _REINSTALL),
    ("software", "mpi", "the MPI library", Level.ERROR, _REINSTALL),
    ("software", "mpi4py", "mpi4py", Level.WARNING, _REINSTALL),
    ("software", "python", "Python", Level.WARNING, _REINSTALL),
    ("software", "nccl", "NCCL", Level.ERROR, _REINSTALL),
    ("software", "nvidia_driver", "the NVIDIA driver", Level.WARNING,
     "install the same driver on all hosts"),
    ("hardware", "model", "the processor", Level.WARNING, _ALIKE),
    ("hardware", "cpu_features", "the features of the processor", Level.WARNING,
     "results of equal jobs may differ in their last bits: use hosts of the same kind"),
    ("hardware", "usable_cpus", "the number of usable CPUs", Level.WARNING, _ALIKE),
    ("hardware", "gpus", "the GPUs", Level.WARNING, _ALIKE),
)  # fmt: skip
_MAY_BE_MISSING = ("nccl", "nvidia_driver")
_NEEDED = {"easyddl": "easyddl", "keras": "Keras", "mpi4py": "mpi4py"}  # titles by package


def judge(facts):
    """Compares the facts of all hosts, and finds what is missing on each.

    Args:
        facts: Dictionary of the agents' answers to `facts`, by host.

    Returns:
        List of `Finding`.
    """
    findings = []
    for host, found in facts.items():
        findings += _missing(host, found["software"])
    for section, name, title, level, advice in _FACTS:
        values = {host: _value(found[section], name) for host, found in facts.items()}
        if name not in _MAY_BE_MISSING:  # `_missing` reports what else is missing
            values = {host: value for host, value in values.items() if value is not None}
        findings += _compare(title, values, level, advice)
    findings += _compare_files(facts)
    if facts and not findings:
        findings.append(fine("software", _summary(next(iter(facts.values()))["software"])))
    return findings


def _missing(host, software):
    for package, title in _NEEDED.items():
        if software[package] is None:
            message = f"{host} has no {title} for {software['executable']}"
            yield error("software", message, f"`pip install {package}`", [host])
    if software["backend_version"] is None:
        backend = software["backend"]
        yield error(
            "software",
            f"{host} has no {backend}, but Keras is configured to use it",
            f"`pip install {backend}`, or set KERAS_BACKEND to a backend that is installed",
            [host],
        )
    if software["mpi_error"]:
        yield error(
            "software",
            f"MPI does not work on {host}: {software['mpi_error']}",
            "load the MPI module of your site on that host, or `pip install mpich`; then install "
            "easyddl again",
            [host],
        )


def _compare(title, values, level, advice):
    """Yields a finding for each value that differs from the most frequent one."""
    groups = collections.Counter(values.values()).most_common()
    for value, _ in groups[1:]:
        usual, count = groups[0]
        hosts = [host for host in values if values[host] == value]
        a, b = _apart(value, usual)
        message = f"{title} differs on {', '.join(hosts)}: {a}; {_hosts(count)} {b}"
        yield Finding(level, "software", message, tuple(hosts), advice)


def _apart(value, usual):
    """Returns two values as text. Of two tuples, only the elements that differ are shown."""
    if not isinstance(value, tuple):
        return value or "none", usual or "none"
    more = [word for word in value if word not in usual]
    less = [word for word in usual if word not in value]
    return " ".join(more) or f"no {' '.join(less)}", " ".join(less) or f"no {' '.join(more)}"


def _compare_files(facts):
    """Yields findings about hosts whose copies of the same version of easyddl differ."""
    by_version = {}
    for host, found in facts.items():
        software = found["software"]
        by_version.setdefault(software["easyddl"], {})[host] = software["easyddl_files"]
    for version, values in by_version.items():
        title = f"the content of the files of easyddl {version}"
        yield from _compare(title, values, Level.ERROR, _REINSTALL)


def _value(found, name):
    """Returns a fact in a form that can be compared and shown."""
    if name == "gpus":
        return ", ".join(model or "GPU" for model in found[name])
    value = found[name]
    return tuple(value) if isinstance(value, list) else value


def _hosts(count):
    return "1 host has" if count == 1 else f"{count} hosts have"


def _summary(software):
    backend = f"{software['backend']} {software['backend_version']}"
    return (
        f"easyddl {software['easyddl']}, Keras {software['keras']}, {backend}, "
        f"{software['mpi']}, Python {software['python']}"
    )
