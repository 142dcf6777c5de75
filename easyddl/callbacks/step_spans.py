"""Writes the steps of a fit to the timeline."""

import itertools
import time

from easyddl.compat import patches
from easyddl.runtime import world

_numbers = itertools.count()  # of this process's steps, over all fits


def record(callback):
    """Makes a callback note when each training step begins and ends.

    Its hooks are replaced on the instance: a class that had them would take the time of a call
    at every step from those who want no timeline, and asynchronous steps from JAX and torch.

    Args:
        callback: A Keras callback without such hooks of its own.
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
