"""What all tests share: which of them a run has, signals, and what a run must not leave."""

import os
import signal

import leftovers
import pytest

# The markers of the tests that are left out, unless `-m` names them.
LEFT_OUT = ("full", "soak", "sanitizer", "longest")

_LEFTOVERS = pytest.StashKey[leftovers.Leftovers]()


@pytest.hookimpl(trylast=True)  # after the end of pytest-xdist's workers
def pytest_sessionfinish(session):
    if _LEFTOVERS not in session.config.stash:
        return
    found = session.config.stash[_LEFTOVERS].find()
    if found:
        print("\nThe tests have left on this machine:", *found, sep="\n  ")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        os.environ[leftovers.OWNER] = str(os.getpid())
        config.stash[_LEFTOVERS] = leftovers.Leftovers()
    use_default_signals()


def use_default_signals():
    """Gives signals their default effects, in tests and in what they start.

    A process inherits which signals are ignored: a run under nohup ignores SIGHUP, and one that a
    script has started with `&` ignores SIGINT and SIGQUIT.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) == signal.SIG_IGN:
            is_interrupt = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def has_any(item, marks):
    return any(map(item.get_closest_marker, marks))


def pytest_collection_modifyitems(config, items):
    for item in items:
        # Of the tests that start ranks, every run has those that say so.
        if item.get_closest_marker("mpirun") and not has_any(item, ("gate", *LEFT_OUT)):
            item.add_marker(pytest.mark.full)
    asked = config.option.markexpr
    left_out = [mark for mark in LEFT_OUT if mark not in asked]
    chosen = [item for item in items if not has_any(item, left_out)]
    if len(chosen) < len(items):
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen
