"""What is suppressed of code that may be the user's own."""

import functools
import os
import signal

import keras
import pytest

import easyddl  # noqa: F401 - it wraps `fit`
from easyddl.compat import user_code


class Limit:
    def __call__(self, number, frame):
        signal.signal(number, signal.SIG_DFL)
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


def test_an_override_that_takes_the_name_of_keras_is_of_the_user():
    @functools.wraps(keras.Model.compute_loss)
    def compute_loss(self, *args, **kwargs):
        return 0.0

    assert not user_code.is_of_keras(compute_loss)
    assert user_code.is_of_keras(keras.Model.compute_loss) and user_code.is_of_keras(keras.Model)
    assert user_code.is_of_keras(keras.Model.fit)  # easyddl wraps it
