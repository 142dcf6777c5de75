"""The optimizers that a step uses and that no attribute of the model names.

An optimizer may be in a list, in another object, or be a global of the script. So the methods by
which Keras's optimizers apply gradients look, on the class, whether a step of a fit is under way.
Then the step hooks the optimizer when it applies gradients for the first time.
"""

import functools

import keras

from easyddl import backends
from easyddl.compat import patches
from easyddl.training import compiled_step, optimizer_hook

# What Keras's trainers and custom steps call. A class of optimizers may have its own.
_METHODS = ("apply", "stateless_apply")


def watch():
    """Has all classes of optimizers look for a step. To be called as a fit begins."""
    for cls in _classes():
        for name in _METHODS:
            if name in vars(cls):
                patches.install(cls, name, _watched)


def _classes():
    yield from keras.optimizers.Optimizer.__mro__[1:-1]
    left = [keras.optimizers.Optimizer]
    while left:
        yield left[-1]
        left.extend(left.pop().__subclasses__())


def _watched(original):
    @functools.wraps(original)
    def method(self, *args, **kwargs):
        step = compiled_step.current()
        is_known = optimizer_hook.is_hooked(self) or optimizer_hook.is_applied_by_another()
        if step is None or is_known:
            return original(self, *args, **kwargs)
        step.hook(self)
        return getattr(self, original.__name__)(*args, **kwargs)

    return backends.require().uncompiled(method)
