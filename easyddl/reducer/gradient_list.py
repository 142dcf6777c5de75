"""A list of gradients that all ranks register once and average at every step."""

import math
import re

import keras
import numpy as np

from easyddl import backends
from easyddl.collectives import arguments, arrays, objects
from easyddl.reducer import bucket_size, buckets, row_cost
from easyddl.reducer.registration import Registration
from easyddl.runtime import world

# A submitter numbers shared rows below this.
_NUMBERS = 2**62


class GradientList:
    """The gradients of a list of variables, averaged over all ranks.

    All ranks must construct it together, in a function that `world.on_all_ranks` decorates. They
    compare names, shapes and dtypes once, in the constructor, so that a step needs no negotiation.

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
        what = f"the reduction of gradients of ({self._listed()})"
        world.agree(f"{what} in buckets of {size}{rows}")
        # If only some ranks have a gradient, the others submit zeros, so that all ranks change the
        # same variables. If some ranks have a sparse gradient and others a dense one, all ranks
        # submit a dense one.
        mine = np.array([self._kinds(grad) for grad in grads], np.uint8).reshape(-1, 2)
        dense, sparse = arrays.allreduce(mine, "max").T
        self._indices = np.flatnonzero(dense | sparse).tolist()
        self._sparse = np.flatnonzero(sparse > dense).tolist()
        self._shared = self._agree_on_shared_parts(grads) if self._sparse else {}
        if self._indices:
            self._register(bucket_bytes or bucket_size.measured())

    def _listed(self):
        names = [arguments.comparable_name(each.name) for each in self._variables]
        pairs = enumerate(zip(names, self._specs, strict=True))
        return ", ".join(f"{i} {name} {s[0]}{s[1]}" for i, (name, s) in pairs)

    def _kinds(self, grad):
        """Returns two booleans: whether this rank's gradient is dense, and whether it is sparse."""
        is_sparse = not self._sparse_as_dense and backends.require().has_rows(grad)
        return grad is not None and not is_sparse, is_sparse

    def _agree_on_shared_parts(self, grads):
        """Finds the parts of sparse gradients whose rows all ranks found to be shared.

        Ranks may trace the step for batches of different shapes, and with some shapes a part is in
        doubt. If only some ranks treated an index as shared, the result would have two rows for it.

        Returns:
            Dict of lists of booleans, by the index of a sparse gradient. Each boolean tells whether
            that part is shared.
        """
        shared_parts = backends.require().shared_parts
        mine = {i: shared_parts(grads[i]) for i in self._sparse if grads[i] is not None}
        by_rank = objects.allgather_object(mine)
        found = {i: [each[i] for each in by_rank if i in each] for i in self._sparse}
        return {i: _found_by_all(lists) for i, lists in found.items()}

    def _register(self, bucket_bytes):
        dtypes, shapes = zip(*(self._specs[i] for i in self._indices), strict=True)
        sizes = [_bytes(self._specs[i]) for i in self._indices]
        sparse = {self._indices.index(i): self._shared[i] for i in self._sparse}
        dense = [i for i in range(len(sizes)) if i not in sparse]
        plan = buckets.plan([sizes[i] for i in dense], [dtypes[i] for i in dense], bucket_bytes)
        plan = [[dense[i] for i in bucket] for bucket in plan]
        self._tables = [
            (
                self._path(self._indices[i]),
                dtypes[i],
                shapes[i][0],
                sizes[i] // max(1, shapes[i][0]),
            )
            for i in sparse
        ]
        self._with_shared_rows = [k for k, parts in enumerate(sparse.values()) if any(parts)]
        shared_tables = [_table_of_shared_rows(self._tables[k]) for k in self._with_shared_rows]
        first = self._variables[self._indices[0]].name
        engine = world.engine()
        reducer = engine.core.Reducer(
            engine.reducer_group,
            f"the reduction of {len(sizes)} gradients (the first is {first})",
            [(dtypes[bucket[0]], [sizes[i] for i in bucket]) for bucket in plan],
            "mean",
            [*self._tables, *shared_tables],
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
        """Returns the mean of each gradient over all ranks.

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
                error = RuntimeError(
                    f"The gradient of {self._variables[i].name!r} is new: no rank had it when the "
                    "ranks registered their gradients. Train this variable from the first step on, "
                    "or in another fit, or with another optimizer."
                )
                self.give_up(error)
                raise error
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
        """Returns the tensor that this rank submits for a gradient that only other ranks have."""
        submitter = self._registration.submitter
        return (submitter.no_rows if i in self._sparse else submitter.zeros)(*self._specs[i])

    def _as_registered(self, grad):
        return backends.require().to_dense(grad) if self._sparse_as_dense else grad

    def give_up(self, error):
        """Ends the reductions on all ranks after an error of this rank: see `Registration`."""
        if self._registration is not None:
            self._registration.give_up(error)

    def close(self):
        """Ends the registration and frees the engine's memory."""
        if self._registration is not None and world.is_started():
            self._registration.close()
            self._advise()

    def _advise(self):
        if self._tables:
            steps, counts = self._registration.engine.gathered
            own, shared = counts[: len(self._tables)], counts[len(self._tables) :]
            for k, count in zip(self._with_shared_rows, shared, strict=True):
                own[k] += count
            row_cost.advise(self._tables, steps, own)


def _spec(grad, variable):
    """Returns the dtype and the shape of a gradient."""
    holder = variable if grad is None else grad
    return keras.backend.standardize_dtype(holder.dtype), tuple(variable.shape)


def _found_by_all(lists):
    """Returns, for each part, whether all ranks found it to be shared.

    Args:
        lists: List of lists of booleans, from each rank that has the gradient.

    Returns:
        List of booleans; empty if the ranks have different numbers of parts.
    """
    if len(set(map(len, lists))) != 1:
        return []
    return [all(found) for found in zip(*lists, strict=True)]


def _table_of_shared_rows(table):
    """Returns the engine's table for the shared rows of a variable.

    Its rows are identified by numbers from the submitter, not by their indices.
    """
    path, dtype, _, row_bytes = table
    return f"{path} (shared rows)", dtype, _NUMBERS, row_bytes


def _bytes(spec):
    """Returns the size of a gradient in bytes, from its dtype and its shape."""
    dtype, shape = spec
    return math.prod(shape) * int(re.sub(r"\D", "", dtype)) // 8
