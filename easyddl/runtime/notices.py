"""What easyddl tells the user on the root, once where it would repeat itself."""

from easyddl.runtime import console, world

_told = set()


def tell(text):
    """Prints a line on the root."""
    if world.is_root():
        console.say(text)


def tell_once(key, text):
    """Prints a line on the root, unless a line with this key was printed before.

    Args:
        key: Hashable, such as a tuple of what the line is about.
        text: String.
    """
    if key not in _told:
        _told.add(key)
        tell(text)


def forget():
    """Lets every line be printed again."""
    _told.clear()
