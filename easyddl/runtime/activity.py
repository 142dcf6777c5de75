"""Activities of this rank that take long, during which other ranks wait without a deadline."""

import contextlib

from easyddl.runtime.engine import engine

_active: list[str] = []  # the innermost last


@contextlib.contextmanager
def activity(text):
    """Suspends the deadlines of the ranks that wait for this rank, while the body runs.

    Those ranks print what this rank does, and do not end the job. Activities nest; the innermost
    one is printed.

    Args:
        text: String. What this rank does, such as "validation".
    """
    _active.append(text)
    engine().world.set_activity(text)
    try:
        yield
    finally:
        _active.remove(text)
        engine().world.set_activity(_active[-1] if _active else "")
