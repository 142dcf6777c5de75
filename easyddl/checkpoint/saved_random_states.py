"""Captures, restores and derives the states of this rank's random number generators."""

import random

import numpy as np

from easyddl import backends
from easyddl.collectives import objects
from easyddl.compat import keras_layer, keras_random
from easyddl.data import global_random
from easyddl.runtime import world


def seed_generators(model):
    """Returns the seed generators of a model's layers, for example of its `Dropout` layers."""
    return [
        generator
        for layer in keras_layer.layers_of(model)
        for generator in keras_layer.seed_generators_of(layer)
    ]


def capture(model):
    """Returns the states of the random number generators that a training uses on this rank.

    These are the seed generators of the model's layers, Keras's global seed generator, the
    generators of Python and NumPy, and those of the framework. For example, Keras and users may
    shuffle data with Python's and NumPy's generators.

    Args:
        model: A Keras model.

    Returns:
        Dict that JSON can represent.
    """
    shared = global_random.shared_states()
    return {
        "generators": [np.asarray(state.numpy()).tolist() for state in _states(model)],
        **_as_json(global_random.states()),
        "framework": backends.require().random_state(),
        **({} if shared is None else {"shared": _as_json(shared)}),
    }


def _as_json(host_states):
    """Returns states of the generators of NumPy and Python in a form that JSON can represent."""
    numbers, python = host_states
    key = {name: np.asarray(value).tolist() for name, value in numbers["state"].items()}
    return {"numpy": {**numbers, "state": key}, "python": python}


def _from_json(captured):
    numbers, (version, words, gauss) = captured["numpy"], captured["python"]
    key = {name: _as_uint64(value) for name, value in numbers["state"].items()}
    return {**numbers, "state": key}, (version, tuple(words), gauss)


def restore(model, captured):
    """Restores the states that `capture` returned, or `derive_for_rank`.

    Args:
        model: A Keras model.
        captured: Dict of states.

    Raises:
        ValueError: If the model has another number of seed generators.
    """
    seeds = captured["generators"]
    states = _states(model)
    if len(seeds) != len(states):
        raise ValueError(
            f"The random state belongs to a model with {len(seeds) - 1} seed generators. "
            f"Received: a model with {len(states) - 1}"
        )
    for state, seed in zip(states, seeds, strict=True):
        state.assign(np.array(seed, state.dtype))
    if "numpy" in captured:
        global_random.set_states(_from_json(captured))
    if "shared" in captured:
        global_random.set_shared_states(_from_json(captured["shared"]))
    if captured.get("framework") is not None:
        backends.require().set_random_state(captured["framework"])


def derive_for_rank(captured, distance):
    """Derives the states of a rank that has no captured states from those of another rank.

    The result contains no states of Python's and NumPy's generators, because different states
    cannot be derived by adding to a seed. `restore` then leaves these generators unchanged.

    Args:
        captured: Dict that `capture` returned on another rank.
        distance: Integer. The number of the new rank minus the number of that other rank.

    Returns:
        Dict of states, for `restore`.
    """
    seeds = [[(seed + distance) % 2**32, count] for seed, count in captured["generators"]]
    framework = captured.get("framework")
    if framework is not None:
        framework = backends.require().random_state_of_another_rank(framework, distance)
    shared = {"shared": captured["shared"]} if "shared" in captured else {}
    return {"generators": seeds, "framework": framework, **shared}


class PerRankStates:
    """Sets different states of the global generators on each rank, until a training ends.

    The global generators belong to no layer: they are the framework's generators and Keras's global
    seed generator. Each rank's states are derived from the root's. The constructor is a collective.

    This includes the generators of NumPy and Python if the ranks also share a common sequence of
    numbers (see `global_random`), and if these generators are in the same state on all ranks.
    Without a seed they differ already.

    Args:
        root_rank: Integer. The rank whose states do not change.
    """

    def __init__(self, root_rank):
        self._root_rank = root_rank
        distance = (world.rank() - root_rank) % world.size()
        self._derives = self._derive_host_generators(distance)
        self._created = _create_global_generator()
        state, seeds, pair = objects.broadcast_object(_global_states(), root_rank)
        backend = backends.require()
        if state is not None:
            backend.set_random_state(backend.random_state_of_another_rank(state, distance))
        if seeds is not None and distance:
            backend.set_op_seeds((seeds[0] + distance, None))
        _set_global_pair([(pair[0] + distance) % 2**32, pair[1]])

    def _derive_host_generators(self, distance):
        """Returns whether the states of NumPy's and Python's generators now differ by rank."""
        if global_random.shared_states() is None:
            return False
        own = global_random.digest(global_random.states())
        if len(set(objects.allgather_object(own))) > 1:
            return False
        global_random.derive(distance)
        return True

    def sync_from_root(self):
        """Sets the root's states of the global generators on all ranks. Collective.

        Afterwards the script draws the same random numbers on all ranks, as before the training.
        """
        if self._derives:
            found = global_random.continued_states()
            global_random.unite(is_provider=False)
            global_random.set_states(objects.broadcast_object(found, self._root_rank))
        was_used = self._created not in (None, _global_states()[2])
        states = objects.broadcast_object((*_global_states(), was_used), self._root_rank)
        state, seeds, pair, was_used = states
        if world.rank() != self._root_rank:
            backend = backends.require()
            if state is not None:
                backend.set_random_state(state)
            if seeds is not None:
                backend.set_op_seeds(seeds)
            _set_global_pair(pair)
        if self._created is not None:
            _undo_global_generator(was_used)


def _global_states():
    """Returns the states of the generators that belong to no layer.

    Returns:
        Tuple of the state of the framework's generators, the seeds of its operations, and the seed
        and the counter of Keras's global seed generator.
    """
    backend = backends.require()
    return backend.random_state(), backend.op_seeds(), _pair_of(keras_random.generator())


def _pair_of(generator):
    """Returns the seed and the counter of a seed generator, as a list."""
    return np.asarray(generator.state.numpy()).tolist()


def _set_global_pair(pair):
    state = keras_random.generator().state
    state.assign(np.array(pair, state.dtype))


def _create_global_generator():
    """Creates Keras's global seed generator if it does not exist yet.

    Keras creates it at its first use and draws its seed from Python's generator. This function
    restores the state of Python's generator, because the script may never use the global one.

    Returns:
        The seed and the counter of the new generator; `None` if the generator already existed.
    """
    if keras_random.has_generator():
        return None
    before = random.getstate()
    generator = keras_random.generator()
    random.setstate(before)
    return _pair_of(generator)


def _undo_global_generator(was_used):
    """Restores the state of one process, in which Keras creates the generator at its first use.

    Args:
        was_used: Boolean. Whether the training has used the generator.
    """
    if was_used:
        keras_random.draw_seed()  # draws the number that Keras would have drawn for the seed
    else:
        keras_random.drop_generator()


def _states(model):
    return [generator.state for generator in (*seed_generators(model), keras_random.generator())]


def _as_uint64(value):
    return np.array(value, np.uint64) if isinstance(value, list) else value
