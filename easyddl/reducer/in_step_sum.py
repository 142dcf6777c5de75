"""Sums over all ranks inside of a step, through which gradients pass."""

import math
import weakref

from keras import ops

from easyddl import backends
from easyddl.reducer import batch_weight
from easyddl.reducer.registration import Registration
from easyddl.runtime import world


class InStepSum:
    """Adds up tensors of one shape over all ranks, at one place of a step.

    All ranks must make it together. Ranks that have no batch in a step add zeros.

    Args:
        what: String. What is added up, for errors.
        shape: Tuple of integers.
    """

    def __init__(self, what, shape):
        with world.taking_part(f"The registration of the sum of {what}"):
            world.agree(f"the sum of {what} of shape {tuple(shape)}")
            self._forward = _registration(f"the sum of {what}", shape)
            self._backward = _registration(f"the gradients of the sum of {what}", shape)
        # What is dropped gives back its memory. Not at exit, when all memory goes.
        both = (self._forward, self._backward)
        self._ends = [weakref.finalize(self, each.close) for each in both]
        for end in self._ends:
            end.atexit = False

    def close(self):
        """Ends it, and gives back the engine's memory."""
        for end in self._ends:
            end()

    def __call__(self, x):
        """The sum of all ranks' `x`, a float32 tensor."""
        # Before any gradient is computed: all ranks must note reducers in the same order.
        self._backward.note()
        add_up = backends.require().differentiable(
            lambda x: self._forward.reduce([x])[0], self._gradient
        )
        return add_up(x)

    def _gradient(self, upstream):
        # The gradients of all ranks are averaged later, each with its rank's weight. The sum passes
        # gradients on between ranks. So each is multiplied by its own rank's weight before it
        # crosses, and divided by this rank's weight afterwards.
        weight = batch_weight.current()
        if weight is None:
            return self._backward.reduce([upstream])[0]
        return ops.divide_no_nan(self._backward.reduce([upstream * weight])[0], weight)


def _registration(what, shape):
    engine = world.engine()
    reducer = engine.core.StepSum(engine.world, what, math.prod(shape))
    return Registration(reducer, [[0]], [tuple(shape)], leads=False)


class InStepRows:
    """All ranks' vectors of one length as the rows of a matrix, at one place of a step.

    The rows of ranks that have no batch are zeros.

    Args:
        what: String. What the vectors are, for errors.
        length: Integer.
    """

    def __init__(self, what, length):
        self._sum = InStepSum(what, (world.size(), length))

    def close(self):
        """Ends it, and gives back the engine's memory."""
        self._sum.close()

    def __call__(self, vector):
        """The matrix of shape `(size, length)`, from this rank's float32 vector."""
        # Each rank adds its own row to zeros.
        place = [[world.rank(), world.size() - 1 - world.rank()], [0, 0]]
        return self._sum(ops.pad(vector[None], place))
