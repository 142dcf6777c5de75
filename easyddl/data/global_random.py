"""The global generators of NumPy and Python, with which data are shuffled and augmented.

After `keras.utils.set_random_seed` all ranks would draw the same numbers, also for augmentations of
their own samples. Therefore, while a fit trains on a dataset that `split_data` has split, each rank
draws numbers of its own, as layers do. What determines the order of all ranks' data is drawn within
`common()`, from numbers that are the same on all ranks.
"""

import contextlib
import hashlib
import random

import numpy as np

from easyddl.data.kinds import is_a

_common = None  # the states of the numbers that all ranks share; `None` if ranks are not separated


def states():
    """Returns the states of the two generators."""
    return np.random.get_state(legacy=False), random.getstate()


def set_states(found):
    """Sets states that `states` returned."""
    numbers, python = found
    np.random.set_state(numbers)
    random.setstate(python)


def digest(found):
    """Returns a checksum of states."""
    numbers, python = found
    inner = {name: np.asarray(each).tolist() for name, each in numbers["state"].items()}
    rest = {name: each for name, each in numbers.items() if name != "state"}
    return hashlib.sha256(repr((inner, rest, python)).encode()).hexdigest()


def separate(shared, distance):
    """Begins to draw different numbers on each rank.

    Args:
        shared: States that are the same on all ranks, for `common`.
        distance: Integer. 0 on the rank whose own numbers stay, and another number on each other
            rank. `None` if the ranks draw different numbers already.
    """
    global _common
    _common = shared
    if distance:
        words = hashlib.sha256(f"{digest(shared)} {distance}".encode()).digest()
        random.seed(words)
        np.random.seed(np.frombuffer(words, np.uint32))


def unite():
    """Ends the separation. Returns the states of the numbers that all ranks share, or `None`."""
    global _common
    shared, _common = _common, None
    return shared


def shared_states():
    """Returns the states of the numbers that all ranks share; `None` without a separation."""
    return _common


def set_shared_states(shared):
    """Sets what `shared_states` returned, in a separation."""
    global _common
    if _common is not None:
        _common = shared


@contextlib.contextmanager
def common():
    """Draws numbers that are the same on all ranks, if each rank draws its own otherwise."""
    if _common is None:
        yield
        return
    own = states()
    set_states(_common)
    try:
        yield
    finally:
        set_shared_states(states())
        set_states(own)


def may_differ(data):
    """Returns whether ranks may draw different numbers while they read the data of a fit.

    They may if `split_data` has split a dataset or a loader whose order comes from `common`, from
    seeds, or from the framework. They must not if a Python function determines all ranks' elements,
    as a generator does.

    Args:
        data: The argument `x` of `fit`.
    """
    if is_a(data, "easyddl", "EpochOrder"):
        return True
    if is_a(data, "torch", "DataLoader"):
        return any(is_a(getattr(data, n), "easyddl") for n in ("sampler", "batch_sampler"))
    if is_a(data, "tensorflow", "DatasetV2"):
        from easyddl.data import tf_graph  # imports TensorFlow

        try:
            split = [each for each in tf_graph.inputs_of(data) if tf_graph.is_sharded(each)]
            return bool(split) and not any(map(tf_graph.calls_python, split))
        except AttributeError:  # another TensorFlow, with other private names
            return False
    return False
