"""What all tests share: the fork servers of a run, the order of its tests, and signals."""

import signal

import fork_server
import groups
import pytest

# The markers of the tests that are left out, unless `-m` names them.
LEFT_OUT = ("full", "soak", "sanitizer", "longest")


def pytest_configure(config):
    # Workers of pytest-xdist inherit the servers of the process that has started them.
    if not hasattr(config, "workerinput"):
        config.add_cleanup(fork_server.begin().cleanup)


@pytest.fixture(autouse=True)
def own_signals(request):
    """Gives a test that sends signals their default effects, on what it starts as well.

    A process inherits what is ignored. A run under nohup ignores SIGHUP, and one that a script has
    started with `&` ignores SIGINT and SIGQUIT. All other tests leave it so.
    """
    before = {}
    if groups.sends_signals(request.node.nodeid):
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
            if signal.getsignal(number) == signal.SIG_IGN:
                is_interrupt = number == signal.SIGINT
                default = signal.default_int_handler if is_interrupt else signal.SIG_DFL
                before[number] = signal.signal(number, default)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from scheduler import GroupScheduling  # needs pytest-xdist

    return GroupScheduling(config, log)


def has_any(item, marks):
    return any(map(item.get_closest_marker, marks))


def pytest_collection_modifyitems(config, items):
    for item in items:
        if groups.mostly_waits(item.nodeid):
            item.add_marker(pytest.mark.waits)
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
