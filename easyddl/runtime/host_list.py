"""Lists of host names in a short form, as Slurm writes them. `hosts.expand_names` reads it."""

import re


def fold(names):
    """The short form of some names, in their order.

    Args:
        names: List of strings.

    Returns:
        String. Names that differ in their last number only are one item, such as `h[1-3,7]`.
    """
    items = {}
    for name in names:
        before, digits, after = re.fullmatch(r"(.*?)(\d*)(\D*)", name).groups()
        items.setdefault((before, after), []).append(digits)
    return ",".join(
        before + _fold_numbers(numbers) + after for (before, after), numbers in items.items()
    )


def _fold_numbers(numbers):
    if len(numbers) == 1:
        return numbers[0]
    ranges = []
    for digits in numbers:
        last = ranges[-1][1] if ranges else ""
        if last and digits and digits == f"{int(last) + 1:0{len(last)}}":
            ranges[-1][1] = digits
        else:
            ranges.append([digits, digits])
    texts = [first if first == last else f"{first}-{last}" for first, last in ranges]
    return f"[{','.join(texts)}]"
