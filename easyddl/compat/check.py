"""Looks up the private names that easyddl uses in the installed Keras."""

import warnings

from easyddl.compat import (
    keras_arrays,
    keras_callback,
    keras_data,
    keras_jax_trainer,
    keras_layer,
    keras_loss,
    keras_metric,
    keras_optimizer,
    keras_random,
    keras_saving,
    keras_scope,
    keras_trainer,
    names,
)

NAMES = (
    *keras_layer.NAMES,
    *keras_trainer.NAMES,
    *keras_jax_trainer.NAMES,
    *keras_data.NAMES,
    *keras_arrays.NAMES,
    *keras_optimizer.NAMES,
    *keras_metric.NAMES,
    *keras_loss.NAMES,
    *keras_random.NAMES,
    *keras_scope.NAMES,
    *keras_saving.NAMES,
    *keras_callback.NAMES,
)


def missing():
    """Returns the names that the installed Keras should have but lacks.

    Returns:
        List of `Name`. Each one's `consequence` says what fails without it.
    """
    return names.absent(NAMES)


def warn_of_missing():
    """Warns of missing names. Call it at import.

    This is no error, because a script may not need the missing name. A feature that needs it fails
    when it is used: `patches.replace` raises an error for an attribute that does not exist.
    """
    found = missing()
    if found:
        warnings.warn(names.message(found), RuntimeWarning, stacklevel=2)
