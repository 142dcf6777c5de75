"""Replaces attributes of instances, classes and modules.

A replacement for a while can be undone: the owner then has what it had of its own, or else what its
class gives it. Replacements of the same name are undone in reverse order. Attributes of instances
are set past the tracking of Keras and PyTorch, which would copy lists, and take in layers and
variables.
"""

import contextlib
import types
import weakref

_NONE = object()

_installed = weakref.WeakSet()


def replace(owner, name, value):
    """Gives an owner another value of an attribute, until that is undone.

    Args:
        owner: An instance with a dict, a class or a module.
        name: String. An attribute that the owner has. A hook under any other name would never be
            called, and nobody would notice.
        value: The attribute's value meanwhile.

    Returns:
        Function that undoes the replacement.

    Raises:
        AttributeError: If the owner has no such attribute.
    """
    _require(owner, name)
    return add(owner, name, value)


def replace_all(owner, values):
    """Replaces several attributes of an owner.

    Args:
        owner: An instance with a dict, a class or a module.
        values: Dict of the values by name.

    Returns:
        Function that undoes all replacements.
    """
    for name in values:
        _require(owner, name)
    undo = [add(owner, name, value) for name, value in values.items()]

    def undo_all():
        for each in reversed(undo):
            each()

    return undo_all


@contextlib.contextmanager
def replaced(owner, name, value):
    """A context in which an owner has another value of an attribute: see `replace`."""
    undo = replace(owner, name, value)
    try:
        yield
    finally:
        undo()


def add(owner, name, value):
    """Gives an owner an attribute that it need not have, until that is undone.

    Returns:
        Function that undoes it.
    """
    own = vars(owner).get(name, _NONE)
    _set(owner, name, value)

    def undo():
        if own is not _NONE:
            _set(owner, name, own)
        elif name in vars(owner):
            _delete(owner, name)

    return undo


def install(owner, name, wrap):
    """Replaces a function of a class or a module for good, once.

    Args:
        owner: A class or a module.
        name: String. A function that the owner has.
        wrap: Function that takes the original and returns its replacement. It is not called where
            the function has been replaced before.
    """
    _require(owner, name)
    original = getattr(owner, name)
    if original in _installed:
        return
    replacement = wrap(original)
    _installed.add(replacement)
    _set(owner, name, replacement)


def _require(owner, name):
    if not hasattr(owner, name):
        raise AttributeError(
            f"easyddl replaces {name!r} of {_words(owner)}, which has no such attribute. The "
            "installed version of its library may be newer than this easyddl: install the latest "
            "easyddl, or an earlier version of that library."
        )


def _words(owner):
    if isinstance(owner, types.ModuleType):
        return f"the module {owner.__name__}"
    cls = owner if isinstance(owner, type) else type(owner)
    return f"{cls.__module__}.{cls.__qualname__}"


def _set(owner, name, value):
    if isinstance(owner, type):
        setattr(owner, name, value)
    else:
        object.__setattr__(owner, name, value)


def _delete(owner, name):
    if isinstance(owner, type):
        delattr(owner, name)
    else:
        object.__delattr__(owner, name)
