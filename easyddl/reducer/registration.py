"""Tensors that all ranks have registered to reduce at one place of a step."""

from easyddl import backends
from easyddl.runtime import context, world


class Registration:
    """A reducer of the engine's, and the backend's part that hands it tensors.

    All ranks must make it together. The ranks compare what they register then, once; a step
    negotiates nothing.

    Args:
        engine: `_core.Exchange` or `_core.StepSum`.
        buckets: List of lists of indices. Which tensors travel together, in which order.
        shapes: List of tuples. The shape of each tensor.
        leads: Boolean. Whether all steps go through it, as through that of the gradients.
        sparse: List of the indices that no bucket has: those of sparse tensors, whose rows of all
            ranks are gathered.
    """

    def __init__(self, engine, buckets, shapes, leads, sparse=()):
        self.engine = engine
        self.submitter = backends.require().submitter(engine, buckets, shapes)
        if sparse:
            self.submitter.gather_rows_of(list(sparse))
        self._leads = leads

    def note(self):
        """Records that the steps of the active fit go through it."""
        join = context.join()
        if join is not None:
            join.note(self.engine, self._leads)

    def reduce(self, tensors, weight=None):
        """The reduction of each tensor over all ranks.

        Args:
            tensors: List of tensors, of the shapes that were registered.
            weight: What this rank's batch counts for: see `BatchWeight`.
        """
        self.note()
        return self.submitter.reduce(tensors, weight)

    def close(self):
        """Ends it, and gives back the engine's memory."""
        # A forked child that drops it has none of the engine's threads to end.
        if not world.is_started():
            return
        self.submitter.stop()
        self.engine.close()
        self.submitter.close()
