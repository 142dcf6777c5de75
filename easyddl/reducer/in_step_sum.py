"""A sum over all ranks inside of a step, through which gradients pass."""

import math
import weakref

from keras import ops

from easyddl import backends
from easyddl.reducer import batch_weight
from easyddl.reducer.ways import Way
from easyddl.runtime import world


class StepSum:
    """Adds up tensors of one shape over all ranks, at one place of a step.

    All ranks must make it together. Ranks that have no batch in a step add zeros.

    Args:
        what: String. What is added up, for errors.
        shape: Tuple of integers.
    """

    def __init__(self, what, shape):
        with world.taking_part(f"The registration of the sum of {what}"):
            world.agree(f"the sum of {what} of shape {tuple(shape)}")
            self._forward = _way(f"the sum of {what}", shape)
            self._backward = _way(f"the gradients of the sum of {what}", shape)
        # What is dropped gives back what it has leased. Not at exit: all goes then.
        self._ends = [weakref.finalize(self, way.close) for way in (self._forward, self._backward)]
        for end in self._ends:
            end.atexit = False

    def close(self):
        """Ends it, and gives back the engine's memory."""
        for end in self._ends:
            end()

    def __call__(self, x):
        """The sum of all ranks' `x`, a float32 tensor."""
        # Registered at once, in the order that all ranks call it in.
        self._backward.take_part()
        add_up = backends.require().differentiable(
            lambda x: self._forward.reduce([x])[0], self._gradient
        )
        return add_up(x)

    def _gradient(self, upstream):
        # What follows weighs this rank's gradients, and with them what other ranks' losses tell
        # of this rank's samples: these must have been weighed by their own ranks' instead.
        weight = batch_weight.current()
        if weight is None:
            return self._backward.reduce([upstream])[0]
        return ops.divide_no_nan(self._backward.reduce([upstream * weight])[0], weight)


def _way(what, shape):
    """That of one float32 tensor, which is added up."""
    return Way(what, [[0]], [4 * math.prod(shape)], ["float32"], [tuple(shape)], op="sum")


class StepRows:
    """All ranks' vectors of one length as the rows of a matrix, at one place of a step.

    The rows of ranks that have no batch are zeros.

    Args:
        what: String. What the vectors are, for errors.
        length: Integer.
    """

    def __init__(self, what, length):
        self._sum = StepSum(what, (world.size(), length))

    def close(self):
        """Ends it, and gives back the engine's memory."""
        self._sum.close()

    def __call__(self, vector):
        """The matrix, from this rank's float32 vector."""
        # Each rank adds a row of its own to zeros.
        place = [[world.rank(), world.size() - 1 - world.rank()], [0, 0]]
        return self._sum(ops.pad(vector[None], place))
