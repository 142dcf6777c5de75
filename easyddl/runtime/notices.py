"""Messages to the user that only the root prints, some of them only once."""

from collections.abc import Hashable

from easyddl.runtime import console, world

_printed: set[Hashable] = set()  # keys of `tell_once`


def tell(text):
    """Prints a line on the root."""
    if world.is_root():
        console.say(text)


def tell_once(key, text):
    """Prints a line on the root, unless it has already printed a line with this key.

    Args:
        key: Hashable that identifies the subject of the line, such as a tuple.
        text: String.
    """
    if key not in _printed:
        _printed.add(key)
        tell(text)


def forget():
    """Allows `tell_once` to print every line again."""
    _printed.clear()
