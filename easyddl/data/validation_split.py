"""Adjusts `validation_split` so that the ranks hold out the same samples as one process."""

import math

import keras

from easyddl.collectives import objects
from easyddl.runtime import world


def to_rank_fraction(arguments):
    """Replaces `validation_split` by this rank's own fraction.

    Keras holds out the last part of each rank's samples. One process would hold out the last part
    of all samples, and the ranks' shards may contain different numbers of these. This function
    changes each rank's fraction so that Keras cuts the shards at the same sample.

    Collective if `validation_split` is passed.

    Args:
        arguments: Dict of the arguments of `keras.Model.fit`.

    Returns:
        Dict of the changed arguments.

    Raises:
        ValueError: On all ranks, if they pass different values of `validation_split`, or if too
            few samples are left on one side of the cut.
    """
    fraction = arguments.get("validation_split")
    if not fraction or arguments.get("validation_data") is not None:
        return arguments
    mine = (float(fraction), _count_samples(arguments.get("x")))
    by_rank = objects.allgather_object(mine)
    if len({fraction for fraction, _ in by_rank}) > 1:
        raise ValueError(
            "All ranks must pass the same `validation_split`. Received, by rank: "
            f"{[fraction for fraction, _ in by_rank]}"
        )
    counts = [count for _, count in by_rank]
    if not _are_sharded(counts):
        return arguments  # the shards are not from split_data, so the global order is unknown
    kept = _kept(float(fraction), sum(counts))
    mine = len(range(world.rank(), kept, world.size()))
    # The added half keeps the result of Keras's computation away from a rounding boundary.
    return {**arguments, "validation_split": 1 - (mine + 0.5) / counts[world.rank()]}


def _kept(fraction, samples):
    """Returns how many of all samples are used for training, computed as Keras does."""
    kept = math.floor(samples * (1.0 - fraction))
    if min(kept, samples - kept) < world.size():
        raise ValueError(
            "`validation_split` must leave each rank at least one sample to train on and one to "
            "hold out. Pass more data, start fewer ranks or pass `validation_data`. Received: "
            f"validation_split={fraction}, with {samples} samples on {world.size()} ranks"
        )
    return kept


def _count_samples(x):
    """Returns the number of samples of arrays; `None` if `x` is something else."""
    shapes = [getattr(leaf, "shape", None) for leaf in keras.tree.flatten(x) if leaf is not None]
    return int(shapes[0][0]) if shapes and shapes[0] else None


def _are_sharded(counts):
    """Returns whether the ranks' numbers of samples are as `split_data` makes them."""
    if None in counts:
        return False
    samples = sum(counts)
    return counts == [len(range(rank, samples, len(counts))) for rank in range(len(counts))]
