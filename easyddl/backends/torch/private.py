"""Every private name of PyTorch that easyddl uses. PyTorch 2.1 to 2.13 have all of them."""


def version_of(tensor):
    """How often a tensor was changed in place.

    Without it, a gradient that was clipped after it had been sent to the other ranks would go
    unnoticed, and ranks would train with gradients that are not clipped.
    """
    return tensor._version
