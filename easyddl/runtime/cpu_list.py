"""Lists of CPU numbers as the kernel writes them: `0-3,8,10-11`."""

import re

_RANGE = re.compile("([0-9]{1,6})(?:-([0-9]{1,6}))?")


def parse(text):
    """The CPUs of a list.

    Args:
        text: String. What a file of the kernel holds, such as `shared_cpu_list`, or what a user
            has written.

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
    """The list of some CPUs.

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
