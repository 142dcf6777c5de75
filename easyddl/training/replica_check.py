"""Whether the ranks still hold the same model."""

import numpy as np

from easyddl.collectives import arrays
from easyddl.collectives.variables import checksum
from easyddl.training import layer_state, model_state


def check(model, place):
    """Raises the same error on all ranks unless they hold equal weights and optimizer states.

    Each rank computes a checksum of each variable (CRC-32 of its bytes); these travel, not the
    variables. What differs by rank by its nature is left out: the moving statistics of
    `BatchNormalization`, the states of stateful RNNs, what layers keep of their batches until an
    epoch ends, and gradients that are gathered for the next update.

    Args:
        model: A built model in training.
        place: String. When this is, for the error.

    Raises:
        RuntimeError: On all ranks; it names the variables and the ranks.
    """
    found = differences(model)
    if found:
        raise RuntimeError(
            f"The ranks' models differ {place}: {found}. Something changes them outside of the "
            "optimizer on some ranks alone (a callback, for example), or draws random numbers that "
            "differ by rank."
        )


def differences(model):
    """The variables that differ by rank, and the ranks, in words; `None` if none does.

    All ranks must call it together.

    Args:
        model: A built model in training.
    """
    late = {id(variable) for variable in layer_state.taken_from_root(model)}
    compared = [each for each in model_state.shared_variables(model) if id(each) not in late]
    mine = np.array([checksum(variable) for variable in compared], np.int64)
    everyones = arrays.allgather(mine[None])
    differing = np.flatnonzero((everyones != everyones[0]).any(axis=0))
    if len(differing) == 0:
        return None
    shown = [_shown(compared[i], everyones[:, i]) for i in differing[:5]]
    more = f", and {len(differing) - 5} more" if len(differing) > 5 else ""
    return "; ".join(shown) + more


def _shown(variable, checksums):
    others = [str(rank) for rank, each in enumerate(checksums) if each != checksums[0]]
    name = getattr(variable, "path", variable.name)
    return f"{name} on rank{'s' if len(others) > 1 else ''} {', '.join(others)} is not rank 0's"
