"""What the gradients of a batch count for beside those of the other ranks."""

import contextlib

from keras import ops

from easyddl import backends

# What stands for the weight of gradients of a sum over samples, which have none (`kPlain` in
# ext/control_word.h).
PLAIN = -1.0

_under_way = []


class BatchWeight:
    """The weight of the batch whose step is being traced or run, as far as its losses tell."""

    def __init__(self):
        self._weight = None

    def set(self, weight):
        """Notes the weight of the batch of this step.

        Args:
            weight: Scalar float32 tensor, `PLAIN`, or `None` where nothing is known.
        """
        # What no gradient passes to, and so does not belong to what is differentiated.
        is_tensor = weight is not None and weight is not PLAIN
        self._weight = ops.stop_gradient(weight) if is_tensor else weight

    def current(self):
        """What `set` was told in this step.

        Returns:
            Scalar float32 tensor, `PLAIN`, or `None` where no loss has told.
        """
        if self._weight is None or self._weight is PLAIN:
            return self._weight
        return self._weight if backends.require().is_current(self._weight) else None

    @property
    def is_plain(self):
        """Whether the losses are sums."""
        return self._weight is PLAIN

    @contextlib.contextmanager
    def of_fit(self):
        """A context in which this is the weight of the fit's batches: see `current`."""
        _under_way.append(self)
        try:
            yield
        finally:
            _under_way.remove(self)
            self._weight = None  # which holds the graph of a step


def current():
    """The weight of the batch that the innermost fit takes a step with.

    Returns:
        Scalar float32 tensor; `None` where nothing has told, or ranks count alike.
    """
    weight = _under_way[-1].current() if _under_way else None
    return None if weight is PLAIN else weight
