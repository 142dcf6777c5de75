"""Variables that ranks have lost, because a step of an earlier fit failed there.

On JAX a step takes the buffers of the variables and returns new ones (Keras donates them to
`jax.jit`). A step fails on the ranks that wait for a rank that has left the fit. Then it returns
none, and the variables have no values any more.
"""

import keras

from easyddl import backends
from easyddl.collectives import variables
from easyddl.runtime import console, notices, settled_errors


def are_there(model):
    """Returns whether a model or its optimizer has variables without values."""
    return any(map(backends.require().is_lost, _variables_of(model)))


def restore(model, ranks):
    """Gives the variables the values that they have on another rank. Collective.

    Those of metrics become zero, because Keras resets them at the begin of an epoch.

    Args:
        model: Keras model.
        ranks: List of booleans, by rank: the results of `are_there`.

    Raises:
        ValueError: On all ranks, if none has all values.
    """
    lost = [rank for rank, has_lost in enumerate(ranks) if has_lost]
    if not lost:
        return
    names = console.ranks(lost)
    if len(lost) == len(ranks):
        raise settled_errors.settled(
            ValueError(
                "All ranks have lost the model's variables, because a step of an earlier fit "
                "failed: on JAX a step takes the variables and returns new ones. Make the model "
                "again, or load it from a checkpoint."
            )
        )
    root = ranks.index(False)
    notices.tell(
        f"warning: {names} had lost the model's variables when a step of an earlier fit failed. "
        f"They have the values of rank {root} now."
    )
    listed = _variables_of(model)
    for variable in filter(backends.require().is_lost, [*listed, *model.metrics_variables]):
        variable.assign(keras.ops.zeros(variable.shape, variable.dtype))
    variables.broadcast_variables(listed, root)


def _variables_of(model):
    """Returns the variables of a model and of its optimizer."""
    listed = [*model.variables, *getattr(model.optimizer, "variables", ())]
    return list({id(each): each for each in listed}.values())
