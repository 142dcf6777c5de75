"""Looks up the private names that easyddl uses in the installed Keras."""

import importlib
import pkgutil
import warnings

from easyddl import compat
from easyddl.compat import names

# Each file `keras_*.py` of this folder lists the names that it uses.
NAMES = tuple(
    name
    for file in pkgutil.iter_modules(compat.__path__, "easyddl.compat.")
    if file.name.startswith("easyddl.compat.keras_")
    for name in importlib.import_module(file.name).NAMES
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
