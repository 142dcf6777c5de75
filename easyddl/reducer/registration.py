"""The registration of tensors that all ranks reduce together at every step."""

from easyddl import backends
from easyddl.runtime import context, world


class Registration:
    """A reducer of the engine, with the backend's submitter that passes tensors to it.

    All ranks must register together. They compare their tensors once, at registration, so that a
    step needs no negotiation.

    Args:
        engine: `_core.Reducer` or `_core.StepSum`.
        buckets: List of lists of indices: the tensors of each bucket, in the order of the buckets.
        shapes: List of tuples. The shape of each tensor.
        leads: Boolean. Whether every step uses the reducer. True for the gradients.
        sparse: List of the indices of sparse tensors, which are in no bucket. Their rows are
            gathered from all ranks.
    """

    def __init__(self, engine, buckets, shapes, leads, sparse=()):
        self.engine = engine
        self.submitter = backends.require().submitter(engine, buckets, shapes)
        if sparse:
            self.submitter.gather_rows_of(list(sparse))
        self._leads = leads

    def note(self):
        """Records that the steps of the active fit use this reducer."""
        join = context.join()
        if join is not None:
            join.note(self.engine, self._leads)

    def reduce(self, tensors, weight=None):
        """The reduction of each tensor over all ranks.

        Args:
            tensors: List of tensors with the registered shapes.
            weight: The weight of this rank's batch: see `BatchWeight`.
        """
        self.note()
        return self.submitter.reduce(tensors, weight)

    def close(self):
        """Ends the registration and frees the engine's memory."""
        # A forked child has no threads of the engine that could be ended.
        if not world.is_started():
            return
        self.submitter.stop()
        self.engine.close()
        self.submitter.close()
