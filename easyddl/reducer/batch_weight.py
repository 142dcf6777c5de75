"""The weight of a rank's batch in the mean of the gradients."""

from keras import ops

from easyddl import backends
from easyddl.runtime import context

# Marks gradients of a loss that is a sum over samples: the ranks are averaged without weights. See
# ext/reducer/control_word.h.
UNWEIGHTED = -1.0


class BatchWeight:
    """The weight of the batch in the step that is being traced or run, as its losses set it."""

    def __init__(self):
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
        """The weight that `set` stored in this step.

        Returns:
            Scalar float32 tensor, `UNWEIGHTED`, or `None` if no loss has set a weight.
        """
        if self._weight is None or self._weight is UNWEIGHTED:
            return self._weight
        return self._weight if backends.require().is_current(self._weight) else None

    @property
    def is_unweighted(self):
        """Whether the losses are sums over samples."""
        return self._weight is UNWEIGHTED


def current():
    """The weight of the batch in the current step of the innermost fit.

    Returns:
        Scalar float32 tensor; `None` if no loss has set a weight, or all ranks have equal weights.
    """
    step = context.step()
    weight = None if step is None else step.weight.current()
    return None if weight is UNWEIGHTED else weight
