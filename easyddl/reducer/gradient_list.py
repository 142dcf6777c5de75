"""A list of gradients that all ranks have registered, and average at every step."""

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

    All ranks must make it together. They compare the names, shapes and dtypes once, here; a step
    negotiates nothing.

    Args:
        grads: List of gradients, `None` where there is none.
        variables: The variables they belong to.
        bucket_bytes: Integer, or `None` for a size that is measured.
        sparse_as_dense: Boolean. Whether sparse gradients travel as dense ones, and not by rows.

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
            # Where only some ranks have a gradient, the others take part with zeros, so that all
            # ranks change the same variables. Where some ranks have rows and others a dense
            # gradient, all take part with dense ones.
            mine = np.array([self._kinds(grad) for grad in grads], np.uint8).reshape(-1, 2)
            dense, sparse = arrays.allreduce(mine, "max").T
            self._indices = np.flatnonzero(dense | sparse).tolist()
            self._sparse = np.flatnonzero(sparse > dense).tolist()
            if self._indices:
                self._register(bucket_bytes or bucket_size.measured())

    def _listed(self):
        # Not by `variable.path`: it holds numbers that count the models made before, which may
        # differ by rank.
        pairs = zip(self._variables, self._specs, strict=True)
        return ", ".join(f"{i} {v.name} {s[0]}{s[1]}" for i, (v, s) in enumerate(pairs))

    def _kinds(self, grad):
        """Whether a rank has a gradient that is dense, and whether it has one that is sparse."""
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
        reducer = engine.core.Exchange(
            engine.world,
            f"the exchange of {len(sizes)} gradients ({first} and on)",
            [(dtypes[bucket[0]], [sizes[i] for i in bucket]) for bucket in plan],
            "mean",
            self._tables,
        )
        self._registration = Registration(reducer, plan, list(shapes), leads=True, sparse=sparse)

    def watch(self, weight):
        """Has gradients leave before `mean` is called, where the backend knows when they are ready.

        Args:
            weight: Function without arguments: what will be passed to `mean`.
        """
        if self._registration is not None:
            variables = [self._variables[i] for i in self._indices]
            self._registration.submitter.watch(variables, weight)

    def unwatch(self):
        """Ends what `watch` has begun, as a fit ends that may not be the last one."""
        if self._registration is not None:
            self._registration.submitter.unwatch()
            self._advise()

    def note(self):
        """Records that the active fit averages these gradients, whether or not this step does."""
        if self._registration is not None:
            self._registration.note()

    def mean(self, grads, weight=None):
        """The mean of each gradient over all ranks.

        Args:
            grads: List of gradients, `None` where there is none.
            weight: Scalar tensor: what this rank's gradients count for beside the others', such
                as its number of samples; `UNWEIGHTED` for gradients of a sum over samples. `None`
                where nothing is known: all ranks that train then count alike.

        Returns:
            List of the same length; `None` where no rank had a gradient at registration.
        """
        for i, grad in enumerate(grads):
            if grad is not None and i not in self._indices:
                raise RuntimeError(
                    f"The gradient of {self._variables[i].name!r} is new: no rank had it when the "
                    "ranks registered the gradients that they exchange. Train such a variable from "
                    "the first step on, or in a fit (or with an optimizer) of its own."
                )
        if self._registration is None:
            return grads
        present = [
            self._stand_in(i) if grads[i] is None else self._as_registered(grads[i])
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

    def _stand_in(self, i):
        """What this rank takes part with for a gradient that others have."""
        submitter = self._registration.submitter
        return (submitter.no_rows if i in self._sparse else submitter.zeros)(*self._specs[i])

    def _as_registered(self, grad):
        return backends.require().to_dense(grad) if self._sparse_as_dense else grad

    def close(self):
        """Ends it, and gives back the engine's memory."""
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
    dtype, shape = spec
    return math.prod(shape) * int(re.sub(r"\D", "", dtype)) // 8
