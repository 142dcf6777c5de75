"""A sum over all ranks inside of a step, through which gradients pass."""

import weakref

from keras import ops

from easyddl import attendance, backends, channels, denominators, world


class StepSum:
    """Adds up tensors of one shape over all ranks, at one place of a step.

    All ranks must make it together. Ranks that have no batch in a step add zeros.

    Args:
        what: String. What is added up, for errors.
        shape: Tuple of integers.
    """

    def __init__(self, what, shape):
        world.agree(f"the sum of {what} of shape {tuple(shape)}")
        self._forward = _Way(f"the sum of {what}", shape)
        self._backward = _Way(f"the gradients of the sum of {what}", shape)

    def __call__(self, x):
        """The sum of all ranks' `x`, a float32 tensor."""

        @ops.custom_gradient
        def add_up(x):
            def gradient(*arguments, upstream=None):
                if upstream is None:
                    (upstream,) = arguments
                return self._gradient(upstream)

            return self._forward.reduce(x), gradient

        # Registered at once, in the order that all ranks call it in.
        self._backward.take_part()
        return add_up(x)

    def _gradient(self, upstream):
        # What follows weighs this rank's gradients, and with them what other ranks' losses tell
        # of this rank's samples: these must have been weighed by their own ranks' instead.
        weight = denominators.current()
        if weight is None:
            return self._backward.reduce(upstream)
        return ops.divide_no_nan(self._backward.reduce(upstream * weight), weight)


class StepRows:
    """All ranks' vectors of one length as the rows of a matrix, at one place of a step.

    The rows of ranks that have no batch are zeros.

    Args:
        what: String. What the vectors are, for errors.
        length: Integer.
    """

    def __init__(self, what, length):
        self._sum = StepSum(what, (world.size(), length))

    def __call__(self, vector):
        """The matrix, from this rank's float32 vector."""
        # Each rank adds a row of its own to zeros.
        place = [[world.rank(), world.size() - 1 - world.rank()], [0, 0]]
        return self._sum(ops.pad(vector[None], place))


class _Way:
    """One sum's way into the engine and back."""

    def __init__(self, what, shape):
        number, channel = channels.lease()
        size = 4
        for length in shape:
            size *= length
        self._engine = world.engine().core.Exchange(channel, what, [("float32", [size])], op="sum")
        self._door = backends.require().Exchange(self._engine.number, [[0]], [tuple(shape)])
        weakref.finalize(self, _close, self._engine, number).atexit = False

    def take_part(self):
        attendance.note(self._engine)

    def reduce(self, x):
        self.take_part()
        (result,) = self._door.reduce([x])
        return result


def _close(engine, number):
    # A forked child has none of the engine's threads to end.
    if world.is_started():
        engine.close()
        if engine.is_sound:
            channels.release(number)
