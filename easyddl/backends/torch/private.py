"""Every private name of PyTorch that easyddl uses. PyTorch 2.1 to 2.13 have all of them."""


def version_of(tensor):
    """Returns how often a tensor was changed in place.

    Without it, easyddl would not notice that a gradient was clipped after it had been sent to the
    other ranks. Ranks would then train with gradients that are not clipped.
    """
    return tensor._version


def is_persistent(module, name):
    """Returns whether a module saves one of its buffers.

    Without it, a cache that grows with the longest batch of a rank would count as state, and ranks
    whose caches have different shapes would raise an error.
    """
    return name not in module._non_persistent_buffers_set
