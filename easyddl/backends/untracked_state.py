"""The state of layers that Keras does not track, because the framework holds it."""

import dataclasses
import weakref

_variables = weakref.WeakKeyDictionary()  # dicts of items of `UntrackedState`, by their owner


@dataclasses.dataclass
class UntrackedState:
    """The state of a layer that is no Keras variable, grouped by how ranks synchronize it.

    Each item has the attributes `name`, `path`, `shape`, `dtype` and `value`, and the methods
    `numpy` and `assign`, of a Keras variable. Every call of `Backend.untracked_state` returns the
    same objects.

    Attributes:
        statistics: List. Running statistics of batch normalization, as floating-point numbers.
        counters: List. Numbers of batches that the statistics contain.
        others: List. State of any other kind.
        caches: List. What a module computes from its configuration and does not save.
    """

    statistics: list = dataclasses.field(default_factory=list)
    counters: list = dataclasses.field(default_factory=list)
    others: list = dataclasses.field(default_factory=list)
    caches: list = dataclasses.field(default_factory=list)


def variable_of(owner, key, make, *arguments):
    """Returns the item of an `UntrackedState` for a variable; the same object in every call.

    Args:
        owner: The layer or the module that has the variable.
        key: What identifies the variable in its owner.
        make: Class of the item.
        *arguments: The arguments of `make`.
    """
    by_key = _variables.setdefault(owner, {})
    if key not in by_key:
        by_key[key] = make(*arguments)
    return by_key[key]
