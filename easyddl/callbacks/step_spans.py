"""Records the steps of a fit in the trace file."""

import itertools
import time

from easyddl.compat import patches
from easyddl.runtime import world

_numbers = itertools.count()  # the numbers of the steps of this process, over all fits


def record(callback):
    """Makes a callback record the beginning and the end of each training step.

    The hooks are replaced on the instance. Hooks in the class would cost a call at every step even
    without a timeline, and would turn off asynchronous steps on JAX and PyTorch.

    Args:
        callback: A Keras callback instance.
    """
    begun = 0

    def begin(batch, logs=None):
        nonlocal begun
        begun = time.monotonic_ns()

    def end(batch, logs=None):
        world.add_step(begun, time.monotonic_ns(), next(_numbers))

    hooks = {"on_train_batch_begin": begin, "on_train_batch_end": end}
    for name, own in hooks.items():
        _append(callback, name, own)


def _append(callback, name, own):
    inherited = getattr(callback, name)

    def hook(batch, logs=None):
        own(batch, logs)
        inherited(batch, logs)

    patches.replace(callback, name, hook)
