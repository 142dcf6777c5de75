"""The global generators of NumPy and Python, with which data are shuffled and augmented.

After `keras.utils.set_random_seed` all ranks would draw the same numbers, also for augmentations of
their own samples. Therefore, while a fit trains on a dataset that `split_data` has split, each rank
draws its own numbers, as layers do. What determines the order of all ranks' data is drawn within
`common()`, from numbers that are the same on all ranks.
"""

import contextlib
import dataclasses
import hashlib
import random

import numpy as np

from easyddl.data.kinds import is_a, reads_tf_dataset


@dataclasses.dataclass
class _Sharing:
    """The numbers that all ranks share during a fit.

    Attributes:
        states: Their states.
        before: String. The digest of this rank's own states when sharing began.
        is_derived: Boolean. Whether each rank's own states were derived from equal ones.
    """

    states: tuple
    before: str
    is_derived: bool = False


_sharing = None  # the `_Sharing` of the active fit; `None` if the ranks share none


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


def share(shared):
    """Begins to draw what all ranks need within `common`, until `unite` is called.

    Keras ends an epoch before the first one, so this comes before the fit of Keras.

    Args:
        shared: The states of one rank, on all ranks.
    """
    global _sharing
    _sharing = _Sharing(shared, digest(states()))


def derive(distance):
    """Begins to draw other numbers on each rank, whose own states are equal so far.

    Args:
        distance: Integer. 0 on the rank whose own numbers stay, and another number on each other
            rank.
    """
    _sharing.is_derived = True
    if distance:
        words = hashlib.sha256(f"{digest(states())} {distance}".encode()).digest()
        random.seed(words)
        np.random.seed(np.frombuffer(words, np.uint32))


def continued_states():
    """Returns the states with which a script goes on: this rank's own, if it has drawn numbers."""
    own = states()
    return own if _sharing is None or digest(own) != _sharing.before else _sharing.states


def unite(is_provider):
    """Ends what `share` and `derive` have begun. Without `share` it does nothing.

    Numbers are then the same on all ranks if they were before, also after an error.

    Args:
        is_provider: Boolean. Whether the shared states came from this rank.
    """
    global _sharing
    if _sharing is None:
        return
    if _sharing.is_derived:
        set_states(_sharing.states)
    elif is_provider:
        set_states(continued_states())
    _sharing = None


def shared_states():
    """Returns the states of the numbers that all ranks share; `None` if they share none."""
    return _sharing and _sharing.states


def set_shared_states(shared):
    """Sets what `shared_states` returned, if the ranks share numbers now."""
    if _sharing is not None:
        _sharing.states = shared


@contextlib.contextmanager
def common():
    """Returns a context in which numbers are the same on all ranks, if they share any."""
    if _sharing is None:
        yield
        return
    own = states()
    set_states(_sharing.states)
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
    return _is_split_by_graph(data)


@reads_tf_dataset(otherwise=bool)
def _is_split_by_graph(data, tf_graph):
    """Returns whether `split_data` has split a dataset whose elements no Python function makes."""
    split = [each for each in tf_graph.inputs_of(data) if tf_graph.is_sharded(each)]
    return bool(split) and not any(map(tf_graph.calls_python, split))
