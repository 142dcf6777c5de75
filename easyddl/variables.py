"""Giving all ranks one rank's variables."""

import numpy as np

from easyddl import collectives, world


def broadcast_variables(variables, root_rank=0):
    """Assigns one rank's values to the variables of all ranks.

    For custom loops: call it before the first step, once the model and the optimizer are
    built. `DDLGlobalVariablesCallback` does this for `model.fit()`.

    Args:
        variables: List of Keras or backend variables, of the same shapes and dtypes, in the
            same order, on all ranks.
        root_rank: Integer. The rank whose values all get.

    Raises:
        TypeError, ValueError: If an argument is none of these.
        RuntimeError: On all ranks, if they disagree in the variables or the root.

    Example:
    ```python
    optimizer.build(model.trainable_variables)
    ddl.broadcast_variables(model.weights + optimizer.variables)
    ```
    """
    text = f"broadcast_variables(root_rank={collectives.plain(root_rank)!r})"
    try:
        collectives.check_root(root_rank)
        variables = list(variables)
        values = [_value(variable) for variable in variables]
    except (TypeError, ValueError) as problem:
        world.agree(f"{text} with a bad argument [{problem}]")
        raise
    parts = [
        f"{i} {getattr(variable, 'name', '')} {value.dtype.name}{value.shape}"
        for i, (variable, value) in enumerate(zip(variables, values, strict=True))
    ]
    signature = world.signature(f"{text} of ({', '.join(parts)})")
    received = collectives.broadcast_arrays(values, root_rank, signature)
    if world.rank() != root_rank:
        for variable, value in zip(variables, received, strict=True):
            variable.assign(value)


def _value(variable):
    if not hasattr(variable, "assign") or not hasattr(variable, "numpy"):
        raise TypeError(
            "`variables` must be a list of variables, as `model.weights` is. "
            f"Received an item of type {type(variable).__name__}"
        )
    return np.asarray(variable.numpy())
