"""Messages to the user that only the root prints, some of them only once."""

import warnings
from collections.abc import Hashable

from easyddl.runtime import console, world

_told: set[Hashable] = set()  # the keys with which `tell_once` or `warn_once` was called


def tell(text):
    """Prints a line on the root."""
    if world.is_root():
        console.say(text)


def tell_once(key, text):
    """Prints a line on the root, unless a message with this key has been printed before.

    Args:
        key: Hashable that identifies the subject of the line, such as a tuple.
        text: String.
    """
    if _is_new(key):
        tell(text)


def warn_once(key, text):
    """Issues a Python warning on the root, unless a message with this key came before.

    Args:
        key: Hashable that identifies the subject of the warning, such as a tuple.
        text: String.
    """
    if _is_new(key) and world.is_root():
        warnings.warn(text, stacklevel=3)


def _is_new(key):
    is_new = key not in _told
    _told.add(key)
    return is_new
