"""What is suppressed of code that may be the user's own."""

import contextlib
import functools
import os
import signal

import pytest

from easyddl.compat import user_code


class Handler:
    def __call__(self, number, frame):
        raise RuntimeError("the time is over")

    def method(self, number, frame):
        raise RuntimeError("the time is over")

    def with_name(self, name, number, frame):
        raise RuntimeError("the time is over")


@contextlib.contextmanager
def handled_by(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_what_the_code_lacks_is_suppressed():
    for error in (RuntimeError, TypeError, KeyError, OSError):
        with user_code.suppress(OSError):
            raise error("it has no value")


@pytest.mark.parametrize(
    "handler",
    [
        lambda number, frame: Handler()(number, frame),
        Handler(),
        Handler().method,
        functools.partial(functools.partial(Handler().with_name), "limit"),
    ],
    ids=["function", "object", "method", "partial"],
)
def test_what_a_signal_handler_raises_is_not_suppressed(handler):
    over = pytest.raises(RuntimeError, match="the time is over")
    with handled_by(handler), over, user_code.suppress():
        os.kill(os.getpid(), signal.SIGUSR1)
