"""Lists of CPU numbers as the kernel writes them: `0-3,8,10-11`."""


def parse(text):
    """The CPUs of a list.

    Args:
        text: String. What a file of the kernel holds, such as `shared_cpu_list`.

    Returns:
        Frozen set of integers. Empty if the text is not such a list.
    """
    cpus = set()
    try:
        for part in text.strip().split(","):
            if not part:
                continue
            first, _, last = part.partition("-")
            cpus.update(range(int(first), int(last or first) + 1))
    except ValueError:
        return frozenset()
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
