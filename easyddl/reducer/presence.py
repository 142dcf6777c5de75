"""Flags by which ranks learn whether any of them has a gradient in a step."""

import numpy as np
from keras import ops

from easyddl import backends


class PresenceFlags:
    """A tensor with one flag for each gradient, which is summed over the ranks with the gradients.

    A model may use a part of its layers in some steps only. On one process the optimizer then
    leaves the other variables alone. On several ranks it must do so if no rank has the gradient. A
    rank needs the flags only if it lacks a gradient itself, so a GPU waits for nothing else.

    The flag of a gradient that a rank has is infinity. The engine multiplies a rank's tensors by
    the weight of its batch, which may be zero. The sum then is NaN, but it is never zero.

    Args:
        indices: List of integers. The gradients that have flags, in the order of the flags.
        dtype: String. The dtype of the tensor.
    """

    def __init__(self, indices, dtype):
        self._indices = indices
        self._dtype = dtype
        self._found_all = set(indices)
        self._all = None  # the flags of a rank that has all gradients

    def of(self, is_present, like):
        """Returns the flags of this rank, on the device of the tensor `like`.

        Args:
            is_present: List of booleans. Whether this rank has each gradient.
            like: A tensor.
        """
        if all(is_present):
            return self.of_all(like)
        return self._new([is_present[i] for i in self._indices], like)

    def of_all(self, like):
        """Returns the flags of a rank that has all gradients, on the device of `like`."""
        is_symbolic = backends.require().is_symbolic
        if self._all is None or is_symbolic(like):
            flags = self._new(True, like)
            if is_symbolic(flags):  # a graph needs a tensor of its own
                return flags
            self._all = flags  # copying new ones to a GPU would wait for it
        return self._all

    def _new(self, mine, like):
        values = np.where(np.broadcast_to(mine, len(self._indices)), np.inf, 0).astype("float32")
        return ops.cast(backends.require().from_numpy(values, like), self._dtype)

    def found(self, is_present, flags):
        """Returns the set of the gradients that any rank has in this step.

        Args:
            is_present: List of booleans. Whether this rank has each gradient.
            flags: The sum or the mean of all ranks' flags.
        """
        if all(is_present):
            return self._found_all
        # A rank that has no batch traces a step only to register its gradients.
        if backends.require().is_symbolic(flags):
            return {i for i in self._indices if is_present[i]}
        there = backends.require().to_numpy(ops.cast(flags, "float32")) != 0
        return {i for i, is_there in zip(self._indices, there, strict=True) if is_there}
