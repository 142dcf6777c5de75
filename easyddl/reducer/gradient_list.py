"""A list of gradients that all ranks register once and average at every step."""

import math
import re

import keras
import numpy as np

from easyddl import backends
from easyddl.collectives import arrays
from easyddl.reducer import bucket_size, buckets, row_cost
from easyddl.reducer.registration import Registration
from easyddl.runtime import world


class GradientList:
    """The gradients of a list of variables, averaged over all ranks.

    All ranks must construct it together. They compare names, shapes and dtypes once, in the
    constructor, so that a step needs no negotiation.

    Args:
        grads: List of gradients; an item is `None` if this rank has no gradient of a variable.
        variables: List of the variables of these gradients.
        bucket_bytes: Integer, or `None` to measure a suitable size.
        sparse_as_dense: Boolean. Whether sparse gradients are converted to dense gradients. If not,
            their rows are gathered from all ranks.

    Raises:
        RuntimeError: On all ranks, if they differ in a gradient, in the bucket size, or in
            `sparse_as_dense`.
    """

    def __init__(self, grads, variables, bucket_bytes=None, sparse_as_dense=False):
        self._specs = [_spec(*pair) for pair in zip(grads, variables, strict=True)]
        self._variables = variables
        self._sparse_as_dense = sparse_as_dense
        self._registration = None
        size = bucket_bytes or "measured size"
        rows = ", sparse ones as dense" if sparse_as_dense else ""
        with world.taking_part("The registration of gradients"):
            what = f"the exchange of gradients of ({self._listed()})"
            world.agree(f"{what} in buckets of {size}{rows}")
            # If only some ranks have a gradient, the others submit zeros, so that all ranks change
            # the same variables. If some ranks have a sparse gradient and others a dense one, all
            # ranks submit a dense one.
            mine = np.array([self._kinds(grad) for grad in grads], np.uint8).reshape(-1, 2)
            dense, sparse = arrays.allreduce(mine, "max").T
            self._indices = np.flatnonzero(dense | sparse).tolist()
            self._sparse = np.flatnonzero(sparse > dense).tolist()
            if self._indices:
                self._register(bucket_bytes or bucket_size.measured())

    def _listed(self):
        # `variable.path` may differ between ranks: it contains the number of earlier models.
        pairs = zip(self._variables, self._specs, strict=True)
        return ", ".join(f"{i} {v.name} {s[0]}{s[1]}" for i, (v, s) in enumerate(pairs))

    def _kinds(self, grad):
        """A pair of booleans: whether this rank has a dense gradient, and whether a sparse one."""
        is_sparse = not self._sparse_as_dense and backends.require().has_rows(grad)
        return grad is not None and not is_sparse, is_sparse

    def _register(self, bucket_bytes):
        dtypes, shapes = zip(*(self._specs[i] for i in self._indices), strict=True)
        sizes = [_bytes(self._specs[i]) for i in self._indices]
        sparse = {self._indices.index(i): self._path(i) for i in self._sparse}
        dense = [i for i in range(len(sizes)) if i not in sparse]
        plan = buckets.plan([sizes[i] for i in dense], [dtypes[i] for i in dense], bucket_bytes)
        plan = [[dense[i] for i in bucket] for bucket in plan]
        self._tables = [
            (path, dtypes[i], shapes[i][0], sizes[i] // max(1, shapes[i][0]))
            for i, path in sparse.items()
        ]
        first = self._variables[self._indices[0]].name
        engine = world.engine()
        reducer = engine.core.Reducer(
            engine.world,
            f"the exchange of {len(sizes)} gradients (the first is {first})",
            [(dtypes[bucket[0]], [sizes[i] for i in bucket]) for bucket in plan],
            "mean",
            self._tables,
        )
        self._registration = Registration(reducer, plan, list(shapes), leads=True, sparse=sparse)

    def watch(self, weight):
        """Submits buckets before `mean` is called, if the backend can tell when they are ready.

        Args:
            weight: Function without arguments that returns the weight that `mean` will get.
        """
        if self._registration is not None:
            variables = [self._variables[i] for i in self._indices]
            self._registration.submitter.watch(variables, weight)

    def unwatch(self):
        """Ends the effect of `watch`. Called at the end of a fit; another fit may follow."""
        if self._registration is not None:
            self._registration.submitter.unwatch()
            self._advise()

    def note(self):
        """Records that the active fit averages these gradients, in this step or in a later one."""
        if self._registration is not None:
            self._registration.note()

    def mean(self, grads, weight=None):
        """The mean of each gradient over all ranks.

        Args:
            grads: List of gradients; an item is `None` if this rank has no gradient of a variable.
            weight: Scalar tensor. The weight of this rank's gradients in the mean, such as its
                number of samples; `UNWEIGHTED` for gradients of a loss that is a sum over samples.
                If it is `None`, all ranks that have a batch get the same weight.

        Returns:
            List of the same length. An item is `None` if no rank had a gradient at registration.
        """
        for i, grad in enumerate(grads):
            if grad is not None and i not in self._indices:
                raise RuntimeError(
                    f"The gradient of {self._variables[i].name!r} is new: no rank had it when the "
                    "ranks registered their gradients. Train this variable from the first step on, "
                    "or in another fit, or with another optimizer."
                )
        if self._registration is None:
            return grads
        present = [
            self._placeholder(i) if grads[i] is None else self._as_registered(grads[i])
            for i in self._indices
        ]
        result = list(grads)
        means = self._registration.reduce(present, weight)
        for i, mean in zip(self._indices, means, strict=True):
            result[i] = mean
        return result

    def _path(self, i):
        variable = self._variables[i]
        return getattr(variable, "path", variable.name)

    def _placeholder(self, i):
        """The tensor that this rank submits for a gradient that only other ranks have."""
        submitter = self._registration.submitter
        return (submitter.no_rows if i in self._sparse else submitter.zeros)(*self._specs[i])

    def _as_registered(self, grad):
        return backends.require().to_dense(grad) if self._sparse_as_dense else grad

    def close(self):
        """Ends the registration and frees the engine's memory."""
        if self._registration is not None and world.is_started():
            self._registration.close()
            self._advise()

    def _advise(self):
        if self._tables:
            row_cost.advise(self._tables, *self._registration.engine.gathered)


def _spec(grad, variable):
    """The dtype and the shape of a gradient."""
    holder = variable if grad is None else grad
    return keras.backend.standardize_dtype(holder.dtype), tuple(variable.shape)


def _bytes(spec):
    """The size of a gradient in bytes, from its dtype and its shape."""
    dtype, shape = spec
    return math.prod(shape) * int(re.sub(r"\D", "", dtype)) // 8
