"""Differentiable sums over all ranks inside of a step."""

import math
import weakref

from keras import ops

from easyddl import backends
from easyddl.reducer import batch_weight
from easyddl.reducer.registration import Registration
from easyddl.runtime import world


class InStepSum:
    """Sums tensors of one shape over all ranks, at one place of a step.

    All ranks must register the sum together. Ranks that have no batch in a step add zeros.

    Args:
        what: String. The name of the quantity, for error messages.
        shape: Tuple of integers.
    """

    def __init__(self, what, shape):
        with world.taking_part(f"The registration of the sum of {what}"):
            world.agree(f"the sum of {what} of shape {tuple(shape)}")
            self._forward = _registration(f"the sum of {what}", shape)
            self._backward = _registration(f"the gradients of the sum of {what}", shape)
        # Free the memory when this object is dropped, but not at exit, when the process frees it.
        both = (self._forward, self._backward)
        self._ends = [weakref.finalize(self, each.close) for each in both]
        for end in self._ends:
            end.atexit = False

    def close(self):
        """Ends the registrations and frees the engine's memory."""
        for end in self._ends:
            end()

    def __call__(self, x):
        """The sum of `x`, a float32 tensor, over all ranks."""
        # Note the reducer of the gradients here: all ranks must note reducers in the same order.
        self._backward.note()
        add_up = backends.require().differentiable(
            lambda x: self._forward.reduce([x])[0], self._gradient
        )
        return add_up(x)

    def _gradient(self, upstream):
        # The gradient reducer later averages gradients, each with the weight of its rank. This sum
        # moves gradients between ranks. So each rank multiplies by its own weight before the sum,
        # and divides by its own weight after it.
        weight = batch_weight.current()
        if weight is None:
            return self._backward.reduce([upstream])[0]
        return ops.divide_no_nan(self._backward.reduce([upstream * weight])[0], weight)


def _registration(what, shape):
    engine = world.engine()
    reducer = engine.core.StepSum(engine.world, what, math.prod(shape))
    return Registration(reducer, [[0]], [tuple(shape)], leads=False)


class InStepRows:
    """Gathers one vector from each rank into the rows of a matrix, at one place of a step.

    The rows of ranks that have no batch are zeros.

    Args:
        what: String. The name of the vectors, for error messages.
        length: Integer. The length of a vector.
    """

    def __init__(self, what, length):
        self._sum = InStepSum(what, (world.size(), length))

    def close(self):
        """Ends the registrations and frees the engine's memory."""
        self._sum.close()

    def __call__(self, vector):
        """The matrix of shape `(size, length)`, from this rank's float32 vector."""
        # Pad with zeros the rows of the other ranks, so that the sum is the matrix.
        padding = [[world.rank(), world.size() - 1 - world.rank()], [0, 0]]
        return self._sum(ops.pad(vector[None], padding))
