"""The kinds of data that can be split, a module each, and what they share.

A kind is recognised by the names of its classes, because naming a class of a framework would
import it. Its module is imported when data of that kind are given, and offers
`split(data, part)`: the part of one rank, in the kind's own form.
"""

import importlib

# (package, class, module); the first that fits counts.
_KINDS = (
    ("tensorflow", "DatasetV2", "tf_dataset"),
    ("keras", "PyDataset", "py_dataset"),
    ("torch", "DataLoader", "torch_loader"),
    ("grain", "MapDataset", "grain_dataset"),
    ("grain", "IterDataset", "grain_dataset"),
    ("grain", "DataLoader", "grain_dataset"),
)


def module_of(data):
    """The module that splits such data; `None` if they are arrays, or of no known kind."""
    for package, cls, module in _KINDS:
        if is_a(data, package, cls):
            return importlib.import_module(f"easyddl.data.{module}")
    if hasattr(data, "__next__"):
        return importlib.import_module("easyddl.data.iterators")
    return None


def is_a(value, package, name=None):
    """Whether a class of `package` is among the classes of `value`."""
    return any(
        cls.__module__.partition(".")[0] == package and name in (None, cls.__name__)
        for cls in type(value).__mro__
    )


def type_name(value):
    """The full name of the type of `value`, for messages."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
