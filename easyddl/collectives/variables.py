"""Collectives that assign equal values to the variables of all ranks."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from easyddl import backends
from easyddl.collectives import arguments, arrays
from easyddl.runtime import world


@world.on_all_ranks("broadcast_variables()")
def broadcast_variables(variables: Sequence[Any], root_rank: int = 0) -> None:
    """Assigns the values of one rank to the variables of all ranks.

    Custom training loops call it after the model and the optimizer are built, and before the first
    step. In `model.fit()` the `DDLGlobalVariablesCallback` does the same.

    Args:
        variables: List of Keras or backend variables, of the same shapes and dtypes, in the
            same order, on all ranks.
        root_rank: Integer. The rank whose values are copied.

    Raises:
        TypeError: If an item is not a variable, or `root_rank` not an integer.
        ValueError: If `root_rank` is not the number of a rank.
        RuntimeError: On all ranks, if they pass different variables or roots.

    Example:
    ```python
    optimizer.build(model.trainable_variables)
    ddl.broadcast_variables(model.weights + optimizer.variables)
    ```
    """
    text = f"broadcast_variables(root_rank={arguments.to_python(root_rank)!r})"
    with world.failing_alike(text, arguments.BAD_ARGUMENT):
        arguments.check_root(root_rank)
        variables = list(variables)
        values = [value_of(variable) for variable in variables]
    text = f"{text} of ({_listed(variables, values)})"
    received = arrays.broadcast_arrays(values, root_rank, text)
    if world.rank() != root_rank:
        for variable, value in zip(variables, received, strict=True):
            _assign(variable, value)


def _listed(variables, values):
    """Returns the names, dtypes and shapes of variables, for all ranks to compare."""
    names = [arguments.comparable_name(str(getattr(each, "name", ""))) for each in variables]
    pairs = enumerate(zip(names, values, strict=True))
    return ", ".join(f"{i} {name} {a.dtype.name}{a.shape}" for i, (name, a) in pairs)


@world.on_all_ranks("the mean of variables")
def average_variables(variables, what, weight=1.0):
    """Assigns the weighted mean over all ranks to each variable.

    Args:
        variables: List of floating-point variables, of the same shapes on all ranks.
        what: String. The name of the variables, for error messages.
        weight: Float. The weight of this rank's values. If the weights of all ranks are 0, the
            variables keep their values.
    """
    if world.size() == 1 or not variables:
        return
    values = [value_of(variable) for variable in variables]
    # One array needs one collective. In float64 the mean of equal float32 numbers is that number.
    # The leading 1 becomes the sum of the weights.
    flat = np.concatenate([[1.0], *(value.ravel().astype(np.float64) for value in values)])
    text = f"the mean of {what}: {[value.shape for value in values]}"
    (total,) = arrays.reduce_arrays([flat * weight], "float64", "sum", text)
    if total[0] == 0:
        return
    ends = np.cumsum([value.size for value in values])[:-1]
    means = np.split(total[1:] / total[0], ends)
    for variable, value, mean in zip(variables, values, means, strict=True):
        variable.assign(mean.reshape(value.shape).astype(value.dtype))


def sampled(array, most=2**20):
    """Returns at most `most` elements of an array at even distances, as a flat array."""
    return array.reshape(-1)[:: array.size // most + 1]


def checksum(array):
    """Returns the CRC-32 of the bytes of an array."""
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def value_of(variable):
    """Returns the value of a Keras or backend variable, as a NumPy array to read.

    It may share the variable's memory, where `variable.numpy()` of a Keras variable copies.
    """
    backend = backends.backend_of(variable)
    has_assign = hasattr(variable, "assign")
    if backend is not None and (has_assign or backend.is_plain_variable(variable)):
        return backend.to_numpy(variable)
    if not has_assign or not hasattr(variable, "numpy"):
        raise TypeError(
            "`variables` must be a list of variables, such as `model.weights`. "
            f"Received an item of type {type(variable).__name__}"
        )
    return np.asarray(variable.numpy())


def _assign(variable, value):
    """Assigns a NumPy array to a Keras or backend variable."""
    if hasattr(variable, "assign"):
        variable.assign(value)
    else:
        backends.require().assign(variable, value)
