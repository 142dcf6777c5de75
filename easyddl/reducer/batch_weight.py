"""What the gradients of a batch count for beside those of the other ranks."""

from keras import ops

from easyddl import backends
from easyddl.runtime import context

# The weight of gradients of a sum over samples: they are averaged as they are (`kUnweighted` in
# ext/reducer/control_word.h).
UNWEIGHTED = -1.0


class BatchWeight:
    """The weight of the batch whose step is being traced or run, as far as its losses tell."""

    def __init__(self):
        self._weight = None

    def set(self, weight):
        """Notes the weight of the batch of this step.

        Args:
            weight: Scalar float32 tensor, `UNWEIGHTED`, or `None` where nothing is known.
        """
        # No gradient passes through a weight: it is a constant of what is differentiated.
        is_tensor = weight is not None and weight is not UNWEIGHTED
        self._weight = ops.stop_gradient(weight) if is_tensor else weight

    def clear(self):
        """Forgets the weight, which holds the graph of a step."""
        self._weight = None

    def current(self):
        """The weight that `set` noted in this step.

        Returns:
            Scalar float32 tensor, `UNWEIGHTED`, or `None` where no loss has told.
        """
        if self._weight is None or self._weight is UNWEIGHTED:
            return self._weight
        return self._weight if backends.require().is_current(self._weight) else None

    @property
    def is_unweighted(self):
        """Whether the losses are sums."""
        return self._weight is UNWEIGHTED


def current():
    """The weight of the batch that the innermost fit takes a step with.

    Returns:
        Scalar float32 tensor; `None` where nothing has told, or ranks count alike.
    """
    step = context.step()
    weight = None if step is None else step.weight.current()
    return None if weight is UNWEIGHTED else weight
