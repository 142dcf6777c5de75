"""Lists of CPU numbers in the kernel's notation: `0-3,8,10-11`."""

import re

_RANGE = re.compile("([0-9]{1,6})(?:-([0-9]{1,6}))?")


def parse(text):
    """Parses a list of CPUs.

    Args:
        text: String. The content of a file of the kernel, such as `shared_cpu_list`, or a user's
            setting.

    Returns:
        Frozen set of integers. Empty if the text is not such a list.
    """
    cpus = set()
    for part in text.strip().split(","):
        found = _RANGE.fullmatch(part)
        numbers = range(int(found[1]), int(found[2] or found[1]) + 1) if found else ()
        if not numbers:
            return frozenset()
        cpus.update(numbers)
    return frozenset(cpus)


def render(cpus):
    """Formats a list of CPUs.

    Args:
        cpus: Iterable of integers.

    Returns:
        String, such as `0-3,8`.
    """
    ranges = []
    for cpu in sorted(set(cpus)):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
