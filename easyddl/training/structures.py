"""Nested structures, such as that of a batch, in a form that travels to other processes.

A structure may hold objects of a class that cannot be pickled by its name: a namedtuple that is
made inside of a function, for example.
"""

import collections
import functools
import importlib


def described(structure):
    """What `rebuilt` makes the structure of: tuples, lists and dicts of Python's own, and leaves.

    Args:
        structure: Nested dicts, lists, tuples and namedtuples of leaves that can be pickled.
    """
    if isinstance(structure, dict):
        is_ordered = isinstance(structure, collections.OrderedDict)
        kind = collections.OrderedDict if is_ordered else dict
        return (kind, None, [(key, described(value)) for key, value in structure.items()])
    if isinstance(structure, list | tuple):
        kind = list if isinstance(structure, list) else tuple
        return (kind, _class(structure), [described(each) for each in structure])
    return (None, None, structure)


def rebuilt(description):
    """The structure that was described.

    A namedtuple whose class cannot be found here becomes one of the same name and fields. Other
    classes become Python's own.
    """
    kind, name, parts = description
    if kind is None:
        return parts
    if issubclass(kind, dict):
        return kind((key, rebuilt(value)) for key, value in parts)
    values = kind(map(rebuilt, parts))
    return values if name is None else _namedtuple(*name)(*values)


def _class(structure):
    """How the class of a namedtuple is found again; `None` for a list or another tuple."""
    kind, fields = type(structure), getattr(structure, "_fields", None)
    return None if fields is None else (kind.__module__, kind.__qualname__, fields)


@functools.cache
def _namedtuple(module, name, fields):
    """The class of that name, or one like it."""
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if getattr(found, "_fields", None) == fields:
            return found
    except (ImportError, AttributeError):
        pass  # it was made inside of a function, or by a script that this process does not run
    return collections.namedtuple(name.rpartition(".")[-1], fields)
