"""A list of gradients that all ranks register once and average at every step."""

import math
import re

import keras
import numpy as np
from keras import ops

from easyddl import backends
from easyddl.collectives import arguments, arrays, objects
from easyddl.reducer import bucket_size, buckets, row_cost
from easyddl.reducer.presence import PresenceFlags
from easyddl.reducer.registration import Registration
from easyddl.runtime import notices, settled_errors, world

# A submitter numbers shared rows below this.
_NUMBERS = 2**62


class GradientList:
    """The gradients of a list of variables, averaged over all ranks.

    All ranks must construct it together, in a function that `world.on_all_ranks` decorates. They
    compare names, shapes and dtypes once, in the constructor, so that a step needs no negotiation.

    Args:
        grads: List of gradients; an item is `None` if this rank has no gradient of a variable.
        variables: List of the variables of these gradients.
        options: `ReductionOptions`. Sparse gradients that are not converted to dense ones are
            reduced by gathering their rows from all ranks.

    Raises:
        RuntimeError: On all ranks, if they differ in a gradient, in the options, or in whether the
            step runs eagerly.
    """

    def __init__(self, grads, variables, options):
        self._specs = [_spec(*pair) for pair in zip(grads, variables, strict=True)]
        self._variables = variables
        self._options = options
        self._registration = None
        self._late_registration = None
        self._was_present = [grad is not None for grad in grads]
        self._is_eager = backends.require().is_eager()
        size = options.bucket_bytes or "measured size"
        rows = ", sparse ones as dense" if options.sparse_as_dense else ""
        wire = f", with wire_dtype={options.wire_dtype}"
        step = ", in an eager step" if self._is_eager else ""
        what = f"the reduction of gradients of ({self._listed()})"
        world.agree(f"{what} in buckets of {size}{rows}{wire}{step}")
        # If only some ranks have a gradient, the others submit zeros, so that all ranks change the
        # same variables. If some ranks have a sparse gradient and others a dense one, all ranks
        # submit a dense one.
        mine = np.array([self._kinds(grad) for grad in grads], np.uint8).reshape(-1, 2)
        dense, sparse = arrays.allreduce(mine, "max").T
        self._indices = np.flatnonzero(dense | sparse).tolist()
        self._late = []
        if self._is_eager:
            self._indices = self._indices or list(range(len(grads)))
            self._late = np.setdiff1d(np.arange(len(grads)), self._indices).tolist()
        self._sparse = np.flatnonzero(sparse > dense).tolist()
        self._shared = self._agree_on_shared_parts(grads) if self._sparse else {}
        if self._indices:
            bucket_bytes = options.bucket_bytes or bucket_size.of_job()
            self._register(bucket_bytes)
            if self._late:
                self._register_late(bucket_bytes)

    def _listed(self):
        names = [arguments.comparable_name(each.name) for each in self._variables]
        pairs = enumerate(zip(names, self._specs, strict=True))
        return ", ".join(f"{i} {name} {s[0]}{s[1]}" for i, (name, s) in pairs)

    def _kinds(self, grad):
        """Returns two booleans: whether this rank's gradient is dense, and whether it is sparse."""
        is_sparse = not self._options.sparse_as_dense and backends.require().has_rows(grad)
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
        specs = [self._specs[i] for i in self._indices]
        dtypes = [dtype for dtype, _ in specs]
        sparse = {self._indices.index(i): self._shared[i] for i in self._sparse}
        plan = buckets.plan(list(map(_bytes, specs)), dtypes, bucket_bytes, left_out=sparse)
        self._tables = [self._table(i) for i in self._sparse]
        self._with_shared_rows = [k for k, parts in enumerate(sparse.values()) if any(parts)]
        shared_tables = [_table_of_shared_rows(self._tables[k]) for k in self._with_shared_rows]
        if self._is_eager:
            flagged = [*self._indices, *self._late]
            dtype = dtypes[plan[-1][0]] if plan else "float32"
            self._flags = PresenceFlags(flagged, dtype)
            plan = [*plan[:-1], [*(plan[-1] if plan else []), len(specs)]]
            specs.append((dtype, (len(flagged),)))
        first = self._variables[self._indices[0]].name
        what = f"{len(self._indices)} gradients (the first is {first})"
        tables = [*self._tables, *shared_tables]
        self._registration = self._new_registration(what, specs, plan, tables, sparse, leads=True)

    def _table(self, i):
        """Returns the engine's table for the rows of a sparse gradient."""
        dtype, shape = self._specs[i]
        return self._path(i), dtype, shape[0], _bytes((dtype, shape)) // max(1, shape[0])

    def _register_late(self, bucket_bytes):
        specs = [self._specs[i] for i in self._late]
        plan = buckets.plan(list(map(_bytes, specs)), [d for d, _ in specs], bucket_bytes)
        first = self._variables[self._late[0]].name
        what = f"{len(specs)} gradients that no rank had at first (the first is {first})"
        self._late_registration = self._new_registration(what, specs, plan, leads=False)

    def _new_registration(self, what, specs, plan, tables=(), sparse=None, *, leads):
        """Registers tensors with the engine.

        Args:
            what: String. Describes the tensors, for errors.
            specs: List of pairs: the dtype and the shape of each tensor.
            plan: List of buckets, which are lists of indices.
            tables: List of the tables of rows.
            sparse: Dict of the sparse tensors: see `Registration`.
            leads: Boolean: see `Registration`.
        """
        of_buckets = [(specs[bucket[0]][0], [_bytes(specs[i]) for i in bucket]) for bucket in plan]
        wire_dtype = self._options.wire_dtype
        if wire_dtype != "float32" and world.num_nodes() > 1:
            text = f"Gradients are sent to other hosts in {wire_dtype} (`wire_dtype`)."
            notices.tell_once("wire dtype", text)
        what = world.in_call(f"the reduction of {what}")
        reducer = world.engine().core.Reducer(
            world.reducer_group(), what, of_buckets, list(tables), wire_dtype
        )
        return Registration(reducer, plan, [shape for _, shape in specs], leads, sparse)

    def _registrations(self):
        both = (self._registration, self._late_registration)
        return [each for each in both if each is not None]

    def watch(self, weight):
        """Submits buckets before `mean` is called, if the backend can tell when they are ready.

        Args:
            weight: Function without arguments that returns the weight that `mean` will get.
        """
        if self._registration is not None:
            variables = [self._variables[i] for i in self._indices]
            # Whether there is a late gradient is known when the optimizer is called, not before.
            flags = self._flags.of_all if self._is_eager and not self._late else None
            self._registration.submitter.watch(variables, weight, flags)

    def unwatch(self):
        """Ends the effect of `watch`. Called at the end of a fit; another fit may follow."""
        if self._registration is not None:
            self._registration.submitter.unwatch()
            self._advise()

    def note(self):
        """Records that the active fit averages these gradients, in this step or in a later one."""
        for each in self._registrations():
            each.note()

    def mean(self, grads, weight=None, is_present=None):
        """Returns the mean of each gradient over all ranks.

        Args:
            grads: List of gradients; an item is `None` if this rank has no gradient of a variable.
            weight: Scalar tensor. The weight of this rank's gradients in the mean, such as its
                number of samples; `UNWEIGHTED` for gradients of a loss that is a sum over samples.
                If it is `None`, all ranks that have a batch get the same weight.
            is_present: List of booleans. Whether this rank has each gradient in this step. Defaults
                to whether it is not `None`.

        Returns:
            List of the same length. An item is `None` if no rank has the gradient. If the step is
            traced, this is the case if no rank had it at registration.
        """
        if is_present is None:
            is_present = [grad is not None for grad in grads]
        if not self._is_eager:
            self._check_trace(is_present)
        if self._registration is None:
            return grads
        if not self._late:
            return self._mean(grads, weight, is_present)
        # After an error in the first reduction the other ranks may be in the second one.
        return settled_errors.call(self._mean, self.give_up, grads, weight, is_present)

    def _mean(self, grads, weight, is_present):
        self.note()
        tensors = [self._submitted(grads[i], i) for i in self._indices]
        if self._is_eager:
            tensors.append(self._flags.of(is_present, tensors[0]))
        means = self._registration.reduce(tensors, weight)
        found = self._flags.found(is_present, means.pop()) if self._is_eager else {*self._indices}
        mean_of = dict(zip(self._indices, means, strict=True))
        if any(i in found for i in self._late):
            late = [self._submitted(grads[i], i) for i in self._late]
            means = self._late_registration.reduce(late, weight)
            mean_of.update(zip(self._late, means, strict=True))
        return [mean_of[i] if i in found else None for i in range(len(grads))]

    def _check_trace(self, is_present):
        """Compares a trace of the step with the trace in which the ranks registered."""
        for i, variable in enumerate(self._variables):
            if is_present[i] and i not in self._indices:
                error = RuntimeError(
                    f"The gradient of {variable.name!r} is new: no rank had it when the ranks "
                    "registered their gradients, and a step that is traced cannot add it. Run the "
                    "steps eagerly, for example by compile(run_eagerly=True), compile the model "
                    "again before you train this variable, or use another optimizer for it. In a "
                    "custom loop pass only the variables that have a gradient."
                )
                self.give_up(error)
                raise error
            if self._was_present[i] and not is_present[i]:
                notices.warn_once(
                    ("absent gradient", self._path(i)),
                    f"This step has no gradient of {variable.name!r}, but the step that was traced "
                    "first had one. The ranks have agreed to apply it, so it counts as zero: "
                    "momentum, Adam and weight decay change the variable, which one process leaves "
                    "alone. Run the steps eagerly, for example by compile(run_eagerly=True). In a "
                    "custom loop pass only the variables that have a gradient.",
                )

    def _path(self, i):
        variable = self._variables[i]
        return getattr(variable, "path", variable.name)

    def _submitted(self, grad, i):
        """Returns the tensor that this rank submits for a gradient; `None` if it has none."""
        dtype, shape = self._specs[i]
        if grad is None and i in self._sparse:
            return self._registration.submitter.no_rows(dtype, shape)
        if grad is None:
            return ops.zeros(shape, dtype)
        # For a late gradient, the ranks have registered the dtype of the variable.
        if i in self._late and keras.backend.standardize_dtype(grad.dtype) != dtype:
            return ops.cast(backends.require().to_dense(grad), dtype)
        return backends.require().to_dense(grad) if self._options.sparse_as_dense else grad

    def forget_weights(self):
        """Makes the next mean independent of earlier weights: see `GradientReducer`."""
        for each in self._registrations():
            each.engine.forget_weights()

    def give_up(self, error):
        """Ends the reductions on all ranks after an error of this rank: see `Registration`."""
        for each in self._registrations():
            each.give_up(error)

    def close(self):
        """Ends the registrations and frees the engine's memory."""
        if self._registration is not None and world.is_started():
            for each in self._registrations():
                each.close()
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
