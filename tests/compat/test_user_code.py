"""What is suppressed of code that may be the user's own."""

import functools
import os
import signal

import pytest

from easyddl.compat import user_code


class Limit:
    def __call__(self, number, frame):
        raise RuntimeError("the time is over")

    def named(self, name, number, frame):
        self(number, frame)


def test_what_the_code_lacks_is_suppressed():
    for error in (RuntimeError, TypeError, KeyError, OSError):
        with user_code.suppress(OSError):
            raise error("it has no value")


@pytest.mark.parametrize("handler", [Limit(), functools.partial(Limit().named, "limit")])
def test_what_a_signal_handler_raises_is_not_suppressed(handler, request):
    before = signal.signal(signal.SIGUSR1, handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGUSR1, before))
    with pytest.raises(RuntimeError, match="the time is over"), user_code.suppress():
        os.kill(os.getpid(), signal.SIGUSR1)
