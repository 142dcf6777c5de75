"""Attributes of an object that are replaced for a while."""

_NONE = object()


def replace(owner, name, value):
    """Gives one object another attribute, past the tracking of attributes by Keras.

    Args:
        owner: Any object with a dict.
        name: String.
        value: What the attribute is meanwhile.

    Returns:
        Function that takes that back: the object has what it had of its own, or its class's.
    """
    own = vars(owner).get(name, _NONE)
    object.__setattr__(owner, name, value)

    def take_back():
        if own is _NONE:
            object.__delattr__(owner, name)
        else:
            object.__setattr__(owner, name, own)

    return take_back
