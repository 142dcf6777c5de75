"""Collectives on objects for `easyddl bench`.

Those of `easyddl.collectives` would import Keras, which takes seconds on each rank.
"""

import pickle

import numpy as np

from easyddl.runtime import byte_collectives, world

_TEXT = "a collective of easyddl bench"


def allgather(value):
    """Returns the values of all ranks, in the order of the ranks. Collective.

    Args:
        value: Any object that can be pickled.
    """
    return [pickle.loads(data) for data in byte_collectives.gather(_pickled(value), _TEXT)]


def broadcast(value):
    """Returns the root's value. Collective.

    Args:
        value: Any object that can be pickled. The objects of the other ranks are ignored.
    """
    data = _pickled(value) if world.is_root() else np.empty(0, np.uint8)
    return pickle.loads(byte_collectives.broadcast(data, 0, _TEXT))


def _pickled(value):
    return np.frombuffer(pickle.dumps(value), np.uint8)
