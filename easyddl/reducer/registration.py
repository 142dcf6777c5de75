"""The registration of tensors that all ranks reduce together at every step."""

from easyddl import backends
from easyddl.runtime import settled_errors, world
from easyddl.steps import context


class Registration:
    """A reducer of the engine, with the backend's submitter that passes tensors to it.

    All ranks must register together. They compare their tensors once, at registration, so that a
    step needs no negotiation.

    Args:
        engine: `_core.Reducer` or `_core.StepSum`.
        buckets: List of lists of indices: the tensors of each bucket, in the order of the buckets.
        shapes: List of tuples. The shape of each tensor.
        leads: Boolean. Whether every step uses the reducer. This is true for gradients.
        sparse: Dict of the sparse tensors, which are in no bucket. Their rows are gathered from all
            ranks: see `Submitter.gather_rows_of`.
        owner: Weak reference or `None`: see `Submitter`.
    """

    def __init__(self, engine, buckets, shapes, leads, sparse=None, owner=None):
        self.engine = engine
        self.submitter = backends.require().submitter(engine, buckets, shapes)
        self.submitter.owner = owner
        if sparse:
            self.submitter.gather_rows_of(sparse)
        self._leads = leads

    def note(self):
        """Records that the steps of the active fit use this reducer."""
        join = context.join()
        if join is not None:
            join.note(self.engine, self._leads)

    def reduce(self, tensors, weight=None):
        """Returns the reduction of each tensor over all ranks.

        Args:
            tensors: List of tensors with the registered shapes.
            weight: The weight of this rank's batch: see `BatchWeight`.
        """
        return settled_errors.call(self._reduce, self.give_up, tensors, weight)

    def _reduce(self, tensors, weight):
        self.note()
        return self.submitter.reduce(tensors, weight)

    def give_up(self, error):
        """Ends the reductions on all ranks after an error of this rank, and settles the error.

        The other ranks may be in a step that this rank does not take. If the script catches the
        error, this rank's next step must not be mistaken for that step, or get its results.

        Args:
            error: The exception.
        """
        if world.is_started():
            self.engine.give_up(settled_errors.why_given_up(error))
            self.submitter.forget()
            settled_errors.settled(error)

    def close(self):
        """Ends the registration and frees the engine's memory."""
        # In a forked child the engine has no threads that could be ended.
        if not world.is_started():
            return
        self.submitter.stop()
        self.engine.close()
        self.submitter.forget()
