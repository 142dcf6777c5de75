"""Finds the module that splits a kind of data.

A kind is recognised by the names of its classes, because a reference to a framework's class would
import the framework. The module of a kind is imported when `split_data` gets data of that kind. It
has a function `split(data, shard)`, which returns the shard of one rank as data of the same kind.
Some have a function `check_order(data)`, a collective that raises an error if the ranks' data may
have different orders.
"""

import functools
import importlib

# (package, class, module). The first entry that matches is used.
_KINDS = (
    ("tensorflow", "DatasetV2", "tf_dataset"),
    ("keras", "PyDataset", "py_dataset"),
    ("torch", "DataLoader", "torch_loader"),
    ("grain", "MapDataset", "grain_dataset"),
    ("grain", "IterDataset", "grain_dataset"),
    ("grain", "DataLoader", "grain_dataset"),
)


def module_of(data):
    """Returns the module that splits `data`; `None` for arrays and unknown kinds."""
    for package, cls, module in _KINDS:
        if is_a(data, package, cls):
            return importlib.import_module(f"easyddl.data.{module}")
    if hasattr(data, "__next__"):
        return importlib.import_module("easyddl.data.iterators")
    return None


def reads_tf_dataset(otherwise):
    """Decorates a function that reads a `tf.data.Dataset` by private names of tf.data.

    The function gets the dataset, and the module `tf_graph`, which imports TensorFlow.

    Args:
        otherwise: Function without arguments. It returns the result for all other data, and for
            datasets of a TensorFlow that has other private names.
    """

    def decorate(function):
        @functools.wraps(function)
        def read(data):
            if not is_a(data, "tensorflow", "DatasetV2"):
                return otherwise()
            tf_graph = importlib.import_module("easyddl.data.tf_graph")
            try:
                return function(data, tf_graph)
            except AttributeError:
                return otherwise()

        return read

    return decorate


def is_a(value, package, name=None):
    """Returns whether `value` is an instance of a class of `package`, named `name` if given."""
    return any(
        cls.__module__.partition(".")[0] == package and name in (None, cls.__name__)
        for cls in type(value).__mro__
    )


def type_name(value):
    """Returns the full name of the type of `value`, for messages."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
