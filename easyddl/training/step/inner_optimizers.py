"""The optimizers to which an optimizer passes its gradients."""

import collections.abc
import functools
import itertools
import types

import keras

_NO_HOLDERS = (type, types.ModuleType)
HOOKED = "_easyddl_hooked"  # the attribute of a method's hook that contains the optimizer
_CONTAINERS = (list, tuple, set, frozenset, collections.deque)

# Objects of these packages are not searched, such as variables and models. A model keeps optimizers
# that are not those of an optimizer that refers to it.
_LIBRARIES = {"easyddl", "jax", "jaxlib", "keras", "numpy", "tensorflow", "torch"}

_MOST = 10_000  # objects that are searched in one attribute, the outermost first


def inner_optimizers(optimizer):
    """Returns the optimizers that an optimizer holds, and those that they hold.

    They are attributes, as that of a `LossScaleOptimizer` is, or inside of containers or plain
    objects that are attributes. An attribute may also be one of their methods.

    Args:
        optimizer: A Keras optimizer.
    """
    found = {id(optimizer): optimizer}
    remaining = [optimizer]
    while remaining:
        outer = remaining.pop()
        for value in list(vars(outer).values()):
            held = optimizers_in(value)
            # An object that holds the outer optimizer too, such as the trainer of both, owns it.
            if any(each is outer for each in held):
                continue
            new = {id(each): each for each in held if id(each) not in found}
            found.update(new)
            remaining.extend(new.values())
    return list(found.values())[1:]


def optimizers_in(value):
    """Returns the optimizers in a value, without those inside of other optimizers."""
    optimizers, seen = [], set()
    remaining = collections.deque([value])
    while remaining and len(seen) < _MOST:
        each = remaining.popleft()
        if id(each) in seen:
            continue
        seen.add(id(each))
        search = _search_of(type(each))
        if search is None:
            optimizers.append(each)
        else:
            held = itertools.islice(search(each), _MOST)
            # An optimizer has lists of thousands of variables.
            remaining.extend(inner for inner in held if _search_of(type(inner)) is not _nothing)
    return optimizers


@functools.lru_cache
def _search_of(kind):
    """Returns the function that lists what an instance of a class holds; `None` for optimizers."""
    if issubclass(kind, keras.optimizers.Optimizer):
        return None
    if issubclass(kind, types.MethodType):
        return lambda each: [each.__self__]
    if issubclass(kind, types.FunctionType):  # the hook of a method, and what wraps that
        return lambda each: [vars(each)[HOOKED]] if HOOKED in vars(each) else []
    if issubclass(kind, functools.partial):
        return lambda each: [each.func, *each.args, *each.keywords.values()]
    if issubclass(kind, dict):
        return lambda each: list(each.values())
    if issubclass(kind, _CONTAINERS):
        return list
    if not _is_plain(kind):
        return _nothing
    slots = _slots_of(kind)
    return lambda each: [
        *getattr(each, "__dict__", {}).values(),
        *(getattr(each, name) for name in slots if hasattr(each, name)),
    ]


def _nothing(each):
    return ()


def _slots_of(kind):
    """Returns the names of the attributes that a class keeps in `__slots__`."""
    return [
        name
        for cls in kind.__mro__
        if "__slots__" in vars(cls)
        for name, member in vars(cls).items()
        if isinstance(member, types.MemberDescriptorType)
    ]


def _is_plain(kind):
    """Returns whether a class is one of the script, or a mapping such as an `OptimizerMap`."""
    if issubclass(kind, _NO_HOLDERS) or not (kind.__dictoffset__ or _slots_of(kind)):
        return False
    packages = {cls.__module__.partition(".")[0] for cls in kind.__mro__}
    return packages.isdisjoint(_LIBRARIES) or issubclass(kind, collections.abc.Mapping)
