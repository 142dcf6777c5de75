"""Replaces attributes of instances, classes and modules.

A temporary replacement can be undone. The owner then gets its own attribute back, or inherits the
one of its class again. Undo replacements of the same name in reverse order. A signal handler may
raise an error before the function that undoes one is kept, or while it runs: `undo_left` undoes
what then is left. Attributes of instances are set without the attribute tracking of Keras and
PyTorch, which would copy lists and register layers and variables.
"""

import contextlib
import functools
import threading
import types
import weakref

_NONE = object()

_installed = weakref.WeakSet()


class _Temporary(threading.local):
    """A thread's replacements, the latest last: tuples of the undo, owner, name and value."""

    def __init__(self):
        self.entries = []


_temporary = _Temporary()


def replace(owner, name, value, lasts=False):
    """Replaces an attribute of an owner, until this is undone.

    Args:
        owner: An instance with a `__dict__`, a class or a module.
        name: String. An attribute that the owner has. A hook with any other name would silently
            never be called.
        value: The new value.
        lasts: Boolean: see `add`.

    Returns:
        Function without arguments that undoes the replacement.

    Raises:
        AttributeError: If the owner has no such attribute.
    """
    _require(owner, name)
    return add(owner, name, value, lasts)


def replace_all(owner, values, lasts=False):
    """Replaces several attributes of an owner.

    Args:
        owner: An instance with a `__dict__`, a class or a module.
        values: Dict of the values by name.
        lasts: Boolean: see `add`.

    Returns:
        Function without arguments that undoes all replacements.
    """
    for name in values:
        _require(owner, name)
    with contextlib.ExitStack() as undo:
        for name, value in values.items():
            undo.callback(add(owner, name, value, lasts))
        return undo.pop_all().close


@contextlib.contextmanager
def replaced(owner, name, value):
    """Returns a context in which an owner has another value of an attribute: see `replace`."""
    undo = replace(owner, name, value)
    try:
        yield
    finally:
        undo()


def undo_left():
    """Undoes this thread's replacements that do not last. Call it when a fit of a script ends."""
    while _temporary.entries:
        undo, owner, name, value = _temporary.entries[-1]
        if vars(owner).get(name) is value:  # otherwise an earlier one of this name is undone
            undo()
        _temporary.entries.pop()


def _undo_one(entries, entry):
    if entry in entries:  # otherwise this is done, as where Python deletes an interrupted context
        entry[0]()
        entries.remove(entry)


def add(owner, name, value, lasts=False):
    """Sets an attribute of an owner, which may lack it, until this is undone.

    Args:
        owner: An instance with a `__dict__`, a class or a module.
        name: String.
        value: The value.
        lasts: Boolean. Whether `undo_left` must not undo it.

    Returns:
        Function without arguments that undoes the change.
    """
    undo, entries = _undo_of(owner, name), _temporary.entries
    entry = undo, owner, name, value
    if not lasts:
        entries.append(entry)
    _set(owner, name, value)
    return undo if lasts else functools.partial(_undo_one, entries, entry)


def _undo_of(owner, name):
    own = vars(owner).get(name, _NONE)

    def undo():
        if own is not _NONE:
            _set(owner, name, own)
        elif name in vars(owner):
            _delete(owner, name)

    return undo


def install(owner, name, wrap):
    """Replaces a function of a class or a module permanently. A second call has no effect.

    Args:
        owner: A class or a module.
        name: String. A function that the owner has.
        wrap: Function that takes the original and returns its replacement. It is not called if the
            function has already been replaced.
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
            "installed library may be newer than this version of easyddl. Install the latest "
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
