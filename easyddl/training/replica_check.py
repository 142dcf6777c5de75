"""Checks whether all ranks hold the same model."""

import numpy as np

from easyddl.collectives import arrays
from easyddl.collectives.variables import checksum
from easyddl.training import layer_state, model_state

_CHANGED = (
    "Something other than the optimizer changes them on some ranks only (a callback, for example), "
    "or draws random numbers that differ between ranks."
)


def check(model, place, cause=_CHANGED):
    """Raises the same error on all ranks unless their weights and optimizer variables are equal.

    Each rank computes a checksum of each variable (CRC-32 of its bytes). The ranks exchange the
    checksums, not the variables. Variables that are expected to differ are not compared: the moving
    statistics of `BatchNormalization`, the states of stateful RNNs, state of layers that is
    synchronized at the end of an epoch, and accumulated gradients.

    Args:
        model: A built Keras model in training.
        place: String. When the check happens, for the error message.
        cause: String. Sentences that say what may be the reason, and what to do.

    Raises:
        RuntimeError: On all ranks. The message names the variables and the ranks.
    """
    found = differences(model)
    if found:
        raise RuntimeError(f"The ranks' models differ {place}: {found}. {cause}")


def differences(model):
    """Describes the variables that differ between ranks. Collective.

    Args:
        model: A built Keras model in training.

    Returns:
        String that names the variables and the ranks; `None` if there are no differences.
    """
    late = {id(variable) for variable in layer_state.synced_at_epoch_end(model)}
    compared = [each for each in model_state.shared_variables(model) if id(each) not in late]
    mine = np.array([checksum(variable) for variable in compared], np.int64)
    checksums = arrays.allgather(mine[None])
    differing = np.flatnonzero((checksums != checksums[0]).any(axis=0))
    if len(differing) == 0:
        return None
    shown = [_shown(compared[i], checksums[:, i]) for i in differing[:5]]
    more = f", and {len(differing) - 5} more" if len(differing) > 5 else ""
    return "; ".join(shown) + more


def _shown(variable, checksums):
    others = [str(rank) for rank, each in enumerate(checksums) if each != checksums[0]]
    name = getattr(variable, "path", variable.name)
    return f"{name} on rank{'s' if len(others) > 1 else ''} {', '.join(others)} is not rank 0's"
