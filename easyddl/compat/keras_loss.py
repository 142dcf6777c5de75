"""Losses."""

from easyddl.compat import patches
from easyddl.compat.names import Name

_REDUCE = Name(
    "keras.src.losses.loss",
    "reduce_weighted_values",
    "ranks with unequal batches, masks or sample weights count alike",
    takes=("values", "sample_weight", "mask", "reduction", "dtype"),
)

_SAME_RANK = Name(
    "keras.src.losses.loss",
    "squeeze_or_expand_to_same_rank",
    "masks and sample weights of one loss cannot be combined",
)

NAMES = (_REDUCE, _SAME_RANK)


def reduction():
    """The function `reduce_weighted_values` by which losses are reduced.

    All of Keras's losses, and those of users that subclass them, call this one function, which
    knows their masks and weights.
    """
    return _REDUCE.get()


def to_same_rank(x1, x2):
    """Two tensors with as many dimensions, as Keras broadcasts masks, sample weights and losses."""
    return _SAME_RANK.get()(x1, x2)


def reduction_replaced(function):
    """A context in which losses are reduced by another function."""
    return patches.replaced(_REDUCE.find_owner(), _REDUCE.name, function)
