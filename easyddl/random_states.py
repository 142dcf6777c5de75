"""Where this rank stands in its random numbers."""

import random

import numpy as np
from keras.src.random.seed_generator import global_seed_generator

from easyddl import backends, objects, world


def seed_generators(model):
    """The seed generators of a model's layers, such as those of its `Dropout` layers."""
    return [
        generator
        for layer in model._flatten_layers()
        for generator in getattr(layer, "_seed_generators", [])
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


def share_framework_state(root_rank):
    """Gives the framework's own generators states that differ by rank, and follow from the root's.

    All ranks must call it.

    Args:
        root_rank: Integer. The rank whose numbers stay what they were.
    """
    door = backends.require()
    roots = objects.broadcast_object(door.random_state(), root_rank)
    if roots is not None:
        distance = (world.rank() - root_rank) % world.size()
        door.set_random_state(door.random_state_of_another_rank(roots, distance))


def _states(model):
    return [generator.state for generator in (*seed_generators(model), global_seed_generator())]


def _numbers(value):
    return np.array(value, np.uint64) if isinstance(value, list) else value
