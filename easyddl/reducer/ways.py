"""A way of tensors into the engine and back, at one place of a step."""

import math

from easyddl import backends
from easyddl.reducer import row_cost
from easyddl.runtime import join, world


class Way:
    """An exchange of the engine's, or a sum, and the backend's submitter to it.

    All ranks must make it together.

    Args:
        what: String. What goes this way, for errors.
        plan: List of lists of indices. Which tensors travel together, in which order.
        sizes: List of integers. The bytes of each tensor.
        dtypes: List of strings. The dtype of each; float32 where they are summed.
        shapes: List of tuples. The shape of each.
        op: `"mean"`, which is weighted, or `"sum"`.
        tables: Dict of names, by index. The tensors that the plan leaves out: they are sparse, and
            all ranks' rows of them are brought together.
    """

    def __init__(self, what, plan, sizes, dtypes, shapes, op="mean", tables=None):
        self._leads = op == "mean"
        self._tables = [
            (name, dtypes[i], shapes[i][0], sizes[i] // max(1, shapes[i][0]))
            for i, name in (tables or {}).items()
        ]
        core, engines_world = world.engine().core, world.engine().world
        if op == "sum":
            self._engine = core.StepSum(engines_world, what, sum(map(math.prod, shapes)))
        else:
            buckets = [(dtypes[b[0]], [sizes[i] for i in b]) for b in plan]
            self._engine = core.Exchange(engines_world, what, buckets, op, self._tables)
        self._submitter = backends.require().submitter(self._engine, plan, shapes)
        if tables:
            self._submitter.gather_rows_of(list(tables))

    def watch(self, variables, weight):
        """Has gradients set off before `reduce` is called, where the backend can tell of them.

        Args:
            variables: List of the variables that they belong to.
            weight: Function without arguments: what this rank's batch counts for in the step that
                is under way.
        """
        self._submitter.watch(variables, weight)

    def unwatch(self):
        """Ends what `watch` has begun, as a fit ends that may not be the last one."""
        self._submitter.unwatch()
        self._advise()

    def take_part(self):
        """Tells the fit under way that its steps go this way."""
        join.note(self._engine, self._leads)

    def reduce(self, tensors, weight=None):
        """The mean or the sum of each tensor over all ranks."""
        self.take_part()
        return self._submitter.reduce(tensors, weight)

    def zeros(self, dtype, shape):
        """What stands in for a tensor that this rank does not have."""
        return self._submitter.zeros(dtype, shape)

    def no_rows(self, dtype, shape):
        """What stands in for a sparse tensor that this rank does not have."""
        return self._submitter.no_rows(dtype, shape)

    def close(self):
        """Ends it, and gives back the engine's memory."""
        # A forked child that drops it has none of the engine's threads to end.
        if not world.is_started():
            return
        self._submitter.stop()
        self._engine.close()
        self._submitter.close()
        self._advise()

    def _advise(self):
        if self._tables:
            row_cost.advise(self._tables, *self._engine.gathered)
