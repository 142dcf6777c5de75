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
    *keras_callback.NAMES,
)


def missing():
    """The names that the installed Keras should have and has not.

    Returns:
        List of `Name`, in whose texts stands what fails without each.
    """
    return names.absent(NAMES)


def warn_of_missing():
    """Warns of missing names. To be called at import.

    No error: a script may do without what needs the name. What does need it fails where it is used,
    as `patches.replace` refuses to hook what Keras does not call.
    """
    found = missing()
    if found:
        warnings.warn(names.message(found), RuntimeWarning, stacklevel=2)
