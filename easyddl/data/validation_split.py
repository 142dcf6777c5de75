"""`validation_split`, such that all ranks together hold out what one process would."""

import math

import keras

from easyddl.collectives import objects
from easyddl.runtime import world


def made_global(arguments):
    """The arguments of a fit, whose `validation_split` is this rank's own.

    Keras holds out the last part of each rank's samples. One process holds out the last part of
    all, and of these, dealt out by `split_data`, the ranks have more or fewer. Each rank's
    fraction is changed so that Keras cuts where they begin.

    All ranks must call it where they pass `validation_split`.

    Args:
        arguments: Dict of the arguments of `keras.Model.fit`.

    Raises:
        ValueError: On all ranks, if they pass another `validation_split`, or if too few samples
            are left on one side of the cut.
    """
    fraction = arguments.get("validation_split")
    if not fraction or arguments.get("validation_data") is not None:
        return arguments
    mine = (float(fraction), _count_samples(arguments.get("x")))
    everyones = objects.allgather_object(mine)
    if len({fraction for fraction, _ in everyones}) > 1:
        raise ValueError(
            "All ranks must pass the same `validation_split`. Received, by rank: "
            f"{[fraction for fraction, _ in everyones]}"
        )
    counts = [count for _, count in everyones]
    if not _are_dealt(counts):
        return arguments  # no split_data made them: what is last among all is unknown
    kept = _kept(float(fraction), sum(counts))
    mine = len(range(world.rank(), kept, world.size()))
    # The half keeps the cut away from where rounding would decide.
    return {**arguments, "validation_split": 1 - (mine + 0.5) / counts[world.rank()]}


def _kept(fraction, samples):
    """How many of all samples are trained on, counted as Keras does."""
    kept = math.floor(samples * (1.0 - fraction))
    if min(kept, samples - kept) < world.size():
        raise ValueError(
            "`validation_split` must leave each rank at least one sample to train on and one to "
            "hold out. Pass more data, start fewer ranks or pass `validation_data`. Received: "
            f"validation_split={fraction}, of {samples} samples of {world.size()} ranks"
        )
    return kept


def _count_samples(x):
    """The number of samples of arrays; `None` if `x` is something else."""
    shapes = [getattr(leaf, "shape", None) for leaf in keras.tree.flatten(x) if leaf is not None]
    return int(shapes[0][0]) if shapes and shapes[0] else None


def _are_dealt(counts):
    if None in counts:
        return False
    samples = sum(counts)
    return counts == [len(range(rank, samples, len(counts))) for rank in range(len(counts))]
