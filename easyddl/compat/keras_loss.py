"""Losses."""

from easyddl.compat import patches
from easyddl.compat.names import Name

_REDUCE = Name(
    "keras.src.losses.loss",
    "reduce_weighted_values(values, sample_weight, mask, reduction, dtype)",
    "ranks with unequal batches, masks or sample weights get equal weights",
)

_SAME_RANK = Name(
    "keras.src.losses.loss",
    "squeeze_or_expand_to_same_rank",
    "masks and sample weights of one loss cannot be combined",
)

_COMPILED = Name(
    "keras.src.trainers.compile_utils.CompileLoss",
    "call(y_true, y_pred, sample_weight)",
    "losses with reduction='sum' are not added over the ranks",
)

NAMES = (_REDUCE, _SAME_RANK, _COMPILED)


def to_same_rank(x1, x2):
    """Returns two tensors with the same number of dimensions, as Keras aligns masks and losses."""
    return _SAME_RANK.get()(x1, x2)


def reduction_wrapped(wrap):
    """Returns a context in which the function that reduces losses to a scalar is wrapped.

    All losses of Keras, and their subclasses, call this function with their masks and weights.

    Args:
        wrap: Function of the function, which returns the wrapper.
    """
    return _wrapped(_REDUCE, wrap)


def compiled_losses_wrapped(wrap):
    """Returns a context in which the method with which Keras calls compiled losses is wrapped.

    Args:
        wrap: Function of the method, which returns the wrapper.
    """
    return _wrapped(_COMPILED, wrap)


def _wrapped(name, wrap):
    return patches.replaced(name.find_owner(), name.name, wrap(name.get()))
