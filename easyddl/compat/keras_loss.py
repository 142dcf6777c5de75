"""Losses."""

from easyddl.compat import patches
from easyddl.compat.names import Name

_REDUCE = Name(
    "keras.src.losses.loss",
    "reduce_weighted_values",
    "ranks with unequal batches, masks or sample weights count alike",
    takes=("values", "sample_weight", "mask", "reduction", "dtype"),
)

NAMES = (_REDUCE,)


def reduction():
    """The function `reduce_weighted_values` by which losses are reduced.

    All of Keras's losses, and those of users that subclass them, call this one function, which
    knows their masks and weights.
    """
    return _REDUCE.get()


def reduction_replaced(function):
    """A context in which losses are reduced by another function."""
    return patches.replaced(_REDUCE.find_owner(), _REDUCE.name, function)
