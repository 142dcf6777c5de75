"""Discovers optimizers that a step uses and that no attribute of the model refers to.

Such an optimizer may be in a list, in another object, or in a global variable of the script.
Therefore the methods by which Keras's optimizers apply gradients are patched on their classes. If a
step of a fit is active, the patched method hooks the optimizer when it applies gradients for the
first time.
"""

import functools

import keras

from easyddl import backends
from easyddl.compat import patches
from easyddl.training import compiled_step, optimizer_hook

# The methods that Keras's trainers and custom steps call. A subclass may override them.
_METHODS = ("apply", "stateless_apply")


def watch():
    """Patches all optimizer classes that exist. Called at the beginning of each fit."""
    for cls in _classes():
        for name in _METHODS:
            if name in vars(cls):
                patches.install(cls, name, _discovering)


def _classes():
    yield from keras.optimizers.Optimizer.__mro__[1:-1]
    remaining = [keras.optimizers.Optimizer]
    while remaining:
        yield remaining[-1]
        remaining.extend(remaining.pop().__subclasses__())


def _discovering(original):
    @functools.wraps(original)
    def method(self, *args, **kwargs):
        step = compiled_step.current()
        is_known = optimizer_hook.is_hooked(self) or optimizer_hook.is_inside_hooked_apply()
        if step is None or is_known:
            return original(self, *args, **kwargs)
        step.hook(self)
        return getattr(self, original.__name__)(*args, **kwargs)

    return backends.require().uncompiled(method)
