"""Numbers with units, as text."""

_RATES = (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1))
_TIMES = (("s", 1), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9))
_BINARY = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))
_DECIMAL = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1))


def bit_rate(rate):
    """Formats a number of bytes per second, as bits per second."""
    return _text(8 * rate, _RATES)


def byte_rate(rate):
    """Formats a number of bytes per second."""
    return f"{decimal_size(rate)}/s"


def seconds(time):
    """Formats a time in seconds."""
    return _text(time, _TIMES)


def size(count):
    """Formats a number of bytes, as of memory."""
    return _text(count, _BINARY)


def decimal_size(count):
    """Formats a number of bytes, as of a message."""
    return _text(count, _DECIMAL)


def _text(value, units):
    unit, scale = next((each for each in units if abs(value) >= each[1]), units[-1])
    return f"{value / scale:.4g} {unit}"
