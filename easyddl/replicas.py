"""Whether the ranks still hold the same model."""

import zlib

import numpy as np

from easyddl import collectives, state


def check(model, place):
    """Raises the same error on all ranks unless they hold equal weights and optimizer states.

    Each rank computes a checksum of each variable (CRC-32 of its bytes); these travel, not the
    variables. What differs by rank by its nature is left out: the moving statistics of
    `BatchNormalization`, and gradients that are gathered for the next update.

    Args:
        model: A built model in training.
        place: String. When this is, for the error.

    Raises:
        RuntimeError: On all ranks; it names the variables and the ranks.
    """
    variables = state.shared_variables(model)
    mine = np.array([_checksum(variable) for variable in variables], np.int64)
    everyones = collectives.allgather(mine[None])
    differing = np.flatnonzero((everyones != everyones[0]).any(axis=0))
    if len(differing) == 0:
        return
    shown = [_shown(variables[i], everyones[:, i]) for i in differing[:5]]
    more = f", and {len(differing) - 5} more" if len(differing) > 5 else ""
    raise RuntimeError(
        f"The ranks' models differ {place}: {'; '.join(shown)}{more}. Something changes them "
        "outside of the optimizer on some ranks alone (a callback, for example), or draws random "
        "numbers that differ by rank."
    )


def _checksum(variable):
    return zlib.crc32(np.ascontiguousarray(variable.numpy()).view(np.uint8).reshape(-1))


def _shown(variable, checksums):
    others = [str(rank) for rank, each in enumerate(checksums) if each != checksums[0]]
    name = getattr(variable, "path", variable.name)
    return f"{name} on rank{'s' if len(others) > 1 else ''} {', '.join(others)} is not rank 0's"
