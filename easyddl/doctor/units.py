"""Formats numbers with units."""


def bits(rate):
    """Formats a number of bytes per second, as bits per second."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if 8 * rate >= size:
            return f"{8 * rate / size:.3g} {unit}"
    return f"{8 * rate / 1e3:.3g} kbit/s"


def seconds(time):
    """Formats a time in seconds."""
    for unit, size in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(time) >= size:
            return f"{time / size:.3g} {unit}"
    return f"{time / 1e-9:.0f} ns"


def size(count):
    """Formats a number of bytes."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << power:
            return f"{count / (1 << power):.3g} {unit}"
    return f"{count} bytes"
