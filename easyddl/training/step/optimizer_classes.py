"""Discovers optimizers when they apply gradients.

The methods by which Keras's optimizers apply gradients are patched on their classes, for three
kinds of optimizers:

- One that a step of a fit uses, and that no attribute of the model refers to. It may be in a list,
  in another object, or in a global variable of the script. It is hooked.
- One that was put around an optimizer with a hook of its own. The hook moves to the outer one.
- One without a hook, outside of fits. Its ranks train alone, which is noted.
"""

import functools

import keras

from easyddl import backends
from easyddl.compat import patches
from easyddl.steps import context
from easyddl.training.step import optimizer_hook, unreduced_updates

# The methods that Keras's trainers and custom steps call. A subclass may override them.
# With the position of their argument `grads`; `None` if they pass the gradients to `apply`.
_METHODS = {"apply": 0, "stateless_apply": 1, "apply_gradients": None}


def watch():
    """Patches all optimizer classes that exist, and each later class when it creates an optimizer.

    Called when easyddl is imported in a job of several ranks, and when optimizers are hooked.
    """
    for cls in _classes():
        _patch(cls)
    base = next(
        each for each in keras.optimizers.Optimizer.__mro__ if "apply_gradients" in vars(each)
    )
    patches.install(base, "__init__", _patching_class)


def _patch(cls):
    for name in _METHODS:
        if name in vars(cls):
            patches.install(cls, name, _discovering)


def _patching_class(original):
    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        for cls in type(self).__mro__:
            _patch(cls)
        original(self, *args, **kwargs)

    return __init__


def _classes():
    yield from keras.optimizers.Optimizer.__mro__[1:-1]
    remaining = [keras.optimizers.Optimizer]
    while remaining:
        yield remaining[-1]
        remaining.extend(remaining.pop().__subclasses__())


def _discovering(original):
    name = original.__name__

    @functools.wraps(original)
    def method(self, *args, **kwargs):
        step = context.running_step()
        if optimizer_hook.is_hooked(self) or context.active(optimizer_hook.Update):
            return original(self, *args, **kwargs)
        if step is not None:
            step.hook(self)
        elif not optimizer_hook.move_outwards(self):
            gradients = _gradients_of(name, args, kwargs)
            if not gradients or context.active(unreduced_updates.Noted):
                return original(self, *args, **kwargs)
            unreduced_updates.note(gradients)
            with unreduced_updates.Noted():
                return original(self, *args, **kwargs)
        return getattr(self, name)(*args, **kwargs)

    return backends.require().uncompiled(method)


def _gradients_of(name, args, kwargs):
    position = _METHODS[name]
    if position is None:
        return []
    given = args[position] if len(args) > position else kwargs.get("grads")
    return list(given) if isinstance(given, list | tuple) else []
