"""Converts nested structures, such as that of a batch, to a form that other processes can load.

A structure may contain objects of a class that `pickle` cannot find by its name, for example a
namedtuple that is defined inside a function.
"""

import collections
import functools
import importlib


def describe(structure):
    """Converts a structure to Python's own tuples, lists and dicts. `rebuild` reverses this.

    Args:
        structure: Nested dicts, lists, tuples and namedtuples of leaves that can be pickled.
    """
    if isinstance(structure, dict):
        is_ordered = isinstance(structure, collections.OrderedDict)
        kind = collections.OrderedDict if is_ordered else dict
        return (kind, None, [(key, describe(value)) for key, value in structure.items()])
    if isinstance(structure, list | tuple):
        kind = list if isinstance(structure, list) else tuple
        return (kind, _name_of_class(structure), [describe(each) for each in structure])
    return (None, None, structure)


def rebuild(description):
    """Converts the result of `describe` back to the structure.

    A namedtuple whose class does not exist in this process becomes a namedtuple with the same name
    and fields. Instances of other classes become Python's own tuples, lists and dicts.
    """
    kind, name, children = description
    if kind is None:
        return children
    if issubclass(kind, dict):
        return kind((key, rebuild(value)) for key, value in children)
    values = kind(map(rebuild, children))
    return values if name is None else _namedtuple(*name)(*values)


def _name_of_class(structure):
    """Returns the arguments of `_namedtuple`; `None` for a list or a plain tuple."""
    kind, fields = type(structure), getattr(structure, "_fields", None)
    return None if fields is None else (kind.__module__, kind.__qualname__, fields)


@functools.cache
def _namedtuple(module, name, fields):
    """Returns the class with this name and these fields, or creates an equivalent class."""
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if getattr(found, "_fields", None) == fields:
            return found
    except (ImportError, AttributeError):
        pass  # defined inside a function, or in a script that this process does not run
    return collections.namedtuple(name.rpartition(".")[-1], fields)
