"""`Submitter`: the interface by which a Keras backend passes tensors to the engine."""

import abc


class Submitter(abc.ABC):
    """Submits the tensors of one registration to the engine at every step, and returns the results.

    Args:
        engine: `_core.Reducer` or `_core.StepSum`. The reducer.
        buckets: List of lists of indices: the tensors of each bucket, in the order of buckets.
        shapes: List of tuples. The shape of each tensor.

    Attributes:
        owner: Weak reference to the object whose end closes the registration. Compiled code that
            submits to the registration must keep this object. `None` if it lives long enough, as
            an optimizer does.
    """

    owner = None

    def __init__(self, engine, buckets, shapes):
        self._engine = engine
        self._buckets = buckets
        self._shapes = shapes

    @abc.abstractmethod
    def reduce(self, tensors, weight=None):
        """Returns the mean of each tensor over all ranks, or its sum if the reducer is a `StepSum`.

        Args:
            tensors: List of tensors, in the order of registration.
            weight: Scalar tensor or number. The weight of this rank's batch. `None` counts as 1.

        Returns:
            List of tensors of the same length. In a step that is being traced, these are symbolic.
        """

    def gather_rows_of(self, sparse):
        """Registers the sparse tensors. They are in no bucket; their rows are gathered.

        The engine has a table of rows for each sparse tensor. After these, it has another table
        for each tensor with shared rows. The submitter numbers the rows of that second table.

        Args:
            sparse: Dict of lists of booleans, by the index of a sparse tensor. Each boolean tells
                whether that part of the tensor holds shared rows: see `Backend.shared_parts`.
        """
        raise NotImplementedError(f"This backend has dense gradients only. Received: {sparse}")

    def no_rows(self, dtype, shape):
        """Returns the sparse tensor without rows that a rank submits in place of a gradient."""
        raise NotImplementedError("This backend has dense gradients only.")

    def watch(self, variables, weight, flags=None):
        """Submits each bucket when its gradients are computed, before `reduce` is called.

        Compiled steps need no implementation: they submit each bucket when it is computed.

        Args:
            variables: List of the variables that the gradients belong to.
            weight: Function without arguments that returns the weight of this rank's batch.
            flags: Function of a tensor. It returns the tensor that follows the gradients in the
                last bucket if all of them exist, on the device of its argument. With `None`, this
                tensor is known only when `reduce` is called.
        """
        return None

    def unwatch(self):
        """Ends the effect of `watch`: from now on only `reduce` submits gradients."""
        return None

    def forget(self):
        """Discards the record of a step that was aborted: which buckets were submitted in it.

        Called also when the reducer is closed and no longer uses the buffers of these buckets.
        """
        return None

    def stop(self):
        """Waits for the results of submitted buckets. Called before the reducer is closed."""
        return None
