"""Where this rank stands in its random numbers."""

import random

import numpy as np

from easyddl import backends
from easyddl.collectives import objects
from easyddl.compat import keras_layer, keras_random
from easyddl.runtime import world


def seed_generators(model):
    """The seed generators of a model's layers, such as those of its `Dropout` layers."""
    return [
        generator
        for layer in keras_layer.layers_of(model)
        for generator in keras_layer.seed_generators_of(layer)
    ]


def capture(model):
    """The state of the random numbers that a training of `model` draws on this rank.

    These are the seed generators of its layers, Keras's global one, and Python's and NumPy's own
    generators, of which Keras and users take the order of data, for example.

    Returns:
        A dict that JSON can hold.
    """
    numbers = np.random.get_state(legacy=False)
    key = {name: np.asarray(value).tolist() for name, value in numbers["state"].items()}
    return {
        "generators": [np.asarray(state.numpy()).tolist() for state in _states(model)],
        "numpy": {**numbers, "state": key},
        "python": random.getstate(),
        "framework": backends.require().random_state(),
    }


def restore(model, captured):
    """Sets the random numbers of this rank back to what `capture` returned.

    Raises:
        ValueError: If the model has other seed generators.
    """
    seeds = captured["generators"]
    states = _states(model)
    if len(seeds) != len(states):
        raise ValueError(
            f"The state of the random numbers is that of a model with {len(seeds) - 1} seed "
            f"generators. Received: a model with {len(states) - 1}"
        )
    for state, seed in zip(states, seeds, strict=True):
        state.assign(np.array(seed, state.dtype))
    if "numpy" in captured:
        numbers = captured["numpy"]
        key = {name: _numbers(value) for name, value in numbers["state"].items()}
        np.random.set_state({**numbers, "state": key})
    if "python" in captured:
        version, words, gauss = captured["python"]
        random.setstate((version, tuple(words), gauss))
    if captured.get("framework") is not None:
        backends.require().set_random_state(captured["framework"])


def of_another_rank(captured, distance):
    """The seeds of a rank that was not there, made of those of one that was.

    Python's and NumPy's generators stay what they are on that rank: they cannot be told apart by
    adding to them.

    Args:
        captured: What `capture` returned on a rank.
        distance: Integer. By how many ranks the other one is further.
    """
    seeds = [[(seed + distance) % 2**32, count] for seed, count in captured["generators"]]
    framework = captured.get("framework")
    if framework is not None:
        framework = backends.require().random_state_of_another_rank(framework, distance)
    return {"generators": seeds, "framework": framework}


class Parted:
    """States that differ by rank, for the length of a training, of generators that no layer owns.

    These are the framework's own, and Keras's global one. They follow from the root's. All ranks
    must make it together.

    Args:
        root_rank: Integer. The rank whose numbers stay what they were.
    """

    def __init__(self, root_rank):
        self._root_rank = root_rank
        self._first_pair = _make_global_generator()
        state, seeds, pair = objects.broadcast_object(_of_no_layer(), self._root_rank)
        distance = (world.rank() - self._root_rank) % world.size()
        backend = backends.require()
        if state is not None:
            backend.set_random_state(backend.random_state_of_another_rank(state, distance))
        if seeds is not None and distance:
            backend.set_op_seeds((seeds[0] + distance, None))
        _set_global_pair([(pair[0] + distance) % 2**32, pair[1]])

    def join(self):
        """Gives all ranks the root's states.

        So what the script draws next is the same on all ranks, as it was before the training. All
        ranks must call it.
        """
        was_used = self._first_pair not in (None, _of_no_layer()[2])
        theirs = objects.broadcast_object((*_of_no_layer(), was_used), self._root_rank)
        state, seeds, pair, was_used = theirs
        if world.rank() != self._root_rank:
            backend = backends.require()
            if state is not None:
                backend.set_random_state(state)
            if seeds is not None:
                backend.set_op_seeds(seeds)
            _set_global_pair(pair)
        if self._first_pair is not None:
            _unmake_global_generator(was_used)


def _of_no_layer():
    backend = backends.require()
    return backend.random_state(), backend.op_seeds(), _pair_of(keras_random.generator())


def _pair_of(generator):
    return np.asarray(generator.state.numpy()).tolist()


def _set_global_pair(pair):
    state = keras_random.generator().state
    state.assign(np.array(pair, state.dtype))


def _make_global_generator():
    """Makes Keras's global generator, where its first use has not, as that would.

    It takes its seed from Python's generator, which stays where it was: the script may never use
    the global one.

    Returns:
        The state of the new generator, or `None` if there was one.
    """
    if keras_random.has_generator():
        return None
    before = random.getstate()
    made = keras_random.generator()
    random.setstate(before)
    return _pair_of(made)


def _unmake_global_generator(was_used):
    """Leaves things as they are on one process, which makes the generator at its first use."""
    if was_used:
        keras_random.draw_seed()  # the number that its seed took
    else:
        keras_random.drop_generator()


def _states(model):
    return [generator.state for generator in (*seed_generators(model), keras_random.generator())]


def _numbers(value):
    return np.array(value, np.uint64) if isinstance(value, list) else value
