"""The contract of the queues by which PyTorch's tensors get into the engine."""

import abc


class SubmitQueue(abc.ABC):
    """Submits buckets of tensors to the engine, and returns the results of each step.

    Args:
        engine: `_core.Reducer` or `_core.StepSum`.
        buckets: List of lists of indices. Which tensors travel together, in which order.
        device: `torch.device`. The device whose memory the engine uses.
    """

    def __init__(self, engine, buckets, device):
        self.device = device
        self._engine = engine
        self._buckets = buckets

    @staticmethod
    @abc.abstractmethod
    def weigh(weight):
        """The weight of a batch as the engine takes it."""

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
            List of the buckets that have been submitted now: this one alone, several that had to
            keep their order, or none, if this one has to wait.
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
    def stop(self):
        """Waits for what all ranks have submitted. Called before the engine's object closes."""

    @abc.abstractmethod
    def close(self):
        """Frees the buffers. Called when the engine's object has closed."""
