"""`SubmitQueue`: the interface of the queues that submit PyTorch's tensors to the engine."""

import abc

from easyddl.runtime import settled_errors


class SubmitQueue(abc.ABC):
    """Submits buckets of tensors to the engine, and returns the results of each step.

    Args:
        engine: `_core.Reducer` or `_core.StepSum`.
        buckets: List of lists of indices. Which tensors are reduced together, in which order.
        device: `torch.device`. The device whose memory the engine uses.
    """

    def __init__(self, engine, buckets, device):
        self.device = device
        self._engine = engine
        self._buckets = buckets
        self.forget()

    @staticmethod
    def weigh(weight):
        """Returns the weight of a batch as the engine takes it."""
        return 1.0 if weight is None else float(weight)

    def mark_ready(self):
        """Notes that the backward pass has computed another gradient."""
        return None

    @abc.abstractmethod
    def submit(self, bucket, gradients, weight):
        """Submits a bucket during the backward pass.

        Args:
            bucket: Integer. The bucket's number.
            gradients: Dict of its gradients by index, which the results may overwrite.
            weight: The weight of the batch, from `weigh`.

        Returns:
            List of the numbers of the buckets that this call submitted. It is empty if the bucket
            must wait for earlier ones, and holds several if others were waiting for this one.
        """

    @abc.abstractmethod
    def reduce(self, buffer_of, weight):
        """Submits all buckets that have not been submitted yet, and ends the step.

        Args:
            buffer_of: Function of an index that makes the `TensorBuffer` of that tensor.
            weight: The weight of the batch, from `weigh`.

        Returns:
            Dict of all results by index.
        """

    @abc.abstractmethod
    def forget(self):
        """Discards the record of a step: which buckets were submitted in it, and their buffers.

        Otherwise a later step would take them for its own, also if the script catches the error of
        an aborted step.
        """

    def give_up(self, error):
        """Ends the step on all ranks after an error of this rank in its backward pass.

        Args:
            error: The exception.
        """
        self._engine.give_up(settled_errors.why_given_up(error))
        self.forget()

    @abc.abstractmethod
    def stop(self):
        """Waits for the buckets that all ranks submitted. Called before the reducer closes."""
