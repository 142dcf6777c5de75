"""The weight of a rank's batch in the mean of the gradients."""

from keras import ops

# Marks gradients of a loss that is a sum over samples. They are averaged over the ranks without
# weights: see ext/reducer/control_word.h.
UNWEIGHTED = -1.0


class BatchWeight:
    """The weight of the batch in the step that is being traced or run, as its losses set it.

    Args:
        is_current: Function of a tensor: `Backend.is_current`.
    """

    def __init__(self, is_current):
        self._is_current = is_current
        self._weight = None

    def set(self, weight):
        """Stores the weight of the batch of this step.

        Args:
            weight: Scalar float32 tensor, `UNWEIGHTED`, or `None` if the losses define no weight.
        """
        # The weight is a constant in the gradients.
        is_tensor = weight is not None and weight is not UNWEIGHTED
        self._weight = ops.stop_gradient(weight) if is_tensor else weight

    def clear(self):
        """Drops the weight, which keeps the graph of its step alive."""
        self._weight = None

    def current(self):
        """Returns the weight that `set` stored in this step.

        Returns:
            Scalar float32 tensor, `UNWEIGHTED`, or `None` if no loss has set a weight.
        """
        if self._weight is None or self._weight is UNWEIGHTED:
            return self._weight
        return self._weight if self._is_current(self._weight) else None

    @property
    def is_unweighted(self):
        """Whether the losses are sums over samples."""
        return self._weight is UNWEIGHTED
