"""Differentiable sums over all ranks inside of a step."""

import collections
import math
import time
import weakref

from keras import ops

from easyddl import backends
from easyddl.reducer.registration import Registration
from easyddl.runtime import deadlines, world
from easyddl.steps import context

# Garbage-collected sums that a compiled function may still use: pairs of the time from which they
# may be closed, and their registrations.
_released: collections.deque = collections.deque()


class InStepSum:
    """Sums tensors of one shape over all ranks, at one place of a step.

    All ranks must register the sum together. Ranks that have no batch in a step add zeros.

    Args:
        what: String. The name of the quantity, for error messages.
        shape: Tuple of integers.
    """

    @world.on_all_ranks("The registration of a sum inside of a step")
    def __init__(self, what, shape):
        _close_expired()
        world.agree(f"the sum of {what} of shape {tuple(shape)}")
        self._forward = self._register(f"the sum of {what}", shape)
        self._backward = self._register(f"the gradients of the sum of {what}", shape)
        # Free the engine's memory when this object is garbage-collected, but not at exit.
        self._end = weakref.finalize(self, _release, (self._forward, self._backward))
        self._end.atexit = False

    def _register(self, what, shape):
        reducer = world.engine().core.StepSum(world.reducer_group(), what, math.prod(shape))
        return Registration(reducer, [[0]], [tuple(shape)], leads=False, owner=weakref.ref(self))

    def give_up(self, error):
        """Ends the sums on all ranks after an error of this rank: see `Registration`."""
        self._forward.give_up(error)
        self._backward.give_up(error)

    def close(self):
        """Ends the registrations and frees the engine's memory."""
        if self._end.detach() is not None:
            _close((self._forward, self._backward))

    @world.on_all_ranks("a sum inside of a step")
    def __call__(self, x):
        """Returns the sum of `x`, a float32 tensor, over all ranks."""
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
        weight = context.batch_weight()
        if weight is None:
            return self._backward.reduce([upstream])[0]
        return ops.divide_no_nan(self._backward.reduce([upstream * weight])[0], weight)


def _release(registrations):
    """Closes the registrations of a garbage-collected sum, at once or when no step can use them.

    A function that runs unreferenced submits to its sums within the time that a rank may be late.
    """
    if not backends.require().outlives_references:
        _close(registrations)
        return
    (_, abort), _ = deadlines.warn_and_abort()
    _released.append((time.monotonic() + (abort or math.inf), registrations))


def _close_expired():
    """Closes the registrations that no step can use anymore."""
    for _ in range(len(_released)):  # garbage collection may append others meanwhile
        entry = _released.popleft()
        if entry[0] <= time.monotonic():
            _close(entry[1])
        else:
            _released.append(entry)


def _close(registrations):
    for each in registrations:
        each.close()


class InStepRows(InStepSum):
    """Gathers one vector from each rank into the rows of a matrix, at one place of a step.

    The matrix is a sum, in which the rows of ranks that have no batch are zeros.

    Args:
        what: String. The name of the vectors, for error messages.
        length: Integer. The length of a vector.
    """

    def __init__(self, what, length):
        super().__init__(what, (world.size(), length))

    def __call__(self, vector):
        """Returns the matrix of shape `(size, length)`, from this rank's float32 vector."""
        # Pad with zeros the rows of the other ranks, so that the sum is the matrix.
        padding = [[world.rank(), world.size() - 1 - world.rank()], [0, 0]]
        return super().__call__(ops.pad(vector[None], padding))
