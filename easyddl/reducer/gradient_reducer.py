"""Averages the gradients of one optimizer over all ranks."""

import math

from keras import ops

from easyddl.reducer.gradient_list import GradientList
from easyddl.reducer.in_step_sum import InStepRows
from easyddl.runtime import world


class GradientReducer:
    """Averages the gradients of one optimizer over all ranks.

    Args:
        bucket_bytes: Integer, or `None` for a size that is measured.
        weight: Function without arguments: what this rank's batch counts for in the step that is
            being traced or run. It returns `None` where nothing is known.
        as_ready: Boolean. Whether the gradients are those that a backward pass computes, so that
            the first buckets may leave before the last gradient is there.
        sparse_as_dense: Boolean. Whether sparse gradients travel as dense ones.
    """

    def __init__(self, bucket_bytes=None, weight=None, as_ready=True, sparse_as_dense=False):
        self._bucket_bytes = bucket_bytes
        self._sparse_as_dense = sparse_as_dense
        self._weight = weight or (lambda: None)
        self._as_ready = as_ready
        self._lists = {}  # of gradients, by the identities of their variables
        self._watched = set()  # the keys of those that leave as they are ready
        self._ranges = {}  # `InStepRows` of variables that gradients overwrite, by identity

    def mean(self, grads, variables):
        """The mean of each gradient over all ranks; `None` where no rank has one.

        A list of variables is registered with the other ranks when it comes for the first time.
        A step that one rank traces again later finds the registration.

        Args:
            grads: List of gradient tensors, or `None` where there is none.
            variables: The variables they belong to.
        """
        if world.size() == 1 or len(grads) != len(variables):
            return grads  # the optimizer says what is wrong with the lengths
        if any(map(is_overwritten, variables)):
            averaged = [i for i, v in enumerate(variables) if not is_overwritten(v)]
            means = self.mean([grads[i] for i in averaged], [variables[i] for i in averaged])
            result = self.overwriting(grads, variables)
            for i, mean in zip(averaged, means, strict=True):
                result[i] = mean
            return result
        return self._list_of(grads, variables).mean(grads, self._weight())

    def _list_of(self, grads, variables):
        key = tuple(map(id, variables))
        if key not in self._lists:
            self._lists[key] = GradientList(
                grads, variables, self._bucket_bytes, self._sparse_as_dense
            )
        if self._as_ready and key not in self._watched:
            self._watched.add(key)
            self._lists[key].watch(self._weight)
        return self._lists[key]

    def register(self, grads, variables):
        """Registers gradients whose mean is asked for in a later step only.

        A rank that has fewer steps must have registered them too.

        Args:
            grads: List of gradient tensors.
            variables: The variables they belong to.
        """
        if world.size() > 1 and variables:
            self._list_of(grads, variables).note()

    def overwriting(self, grads, variables):
        """The gradients, where those that replace a variable are the largest of all ranks'.

        Such variables are the ranges of float8 layers: the largest number that a layer has seen.
        """
        result = list(grads)
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True)):
            if world.size() == 1 or not is_overwritten(variable):
                continue
            count = math.prod(variable.shape)
            if id(variable) not in self._ranges:
                self._ranges[id(variable)] = InStepRows(f"the range {variable.name}", count)
            rows = self._ranges[id(variable)](ops.cast(ops.reshape(grad, (count,)), "float32"))
            result[i] = ops.cast(ops.reshape(ops.max(rows, axis=0), variable.shape), grad.dtype)
        return result

    def pause(self):
        """Has backward passes between two fits, which may be anyone's, send nothing."""
        for each in self._lists.values():
            each.unwatch()
        self._watched.clear()

    def close(self):
        """Ends its registrations."""
        for each in self._lists.values():
            each.close()
        self._lists.clear()
        self._ranges.clear()


def is_overwritten(variable):
    """Whether gradients of a variable take its place, as those of float8 ranges do."""
    return getattr(variable, "overwrite_with_gradient", False)


def exchanged_steps():
    """How many steps of gradients this process has averaged with the other ranks."""
    return world.engine().core.exchanged_steps()
