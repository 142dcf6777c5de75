"""Keras's global seed generator, for layers and functions without their own generator."""

from easyddl.compat.names import Name

_STATE = "keras.src.backend.common.global_state"
_SEEDS = "keras.src.random.seed_generator"
_DIFFERS = "the random numbers that a script draws after a fit differ from those of one process"

_GET = Name(_STATE, "get_global_attribute", _DIFFERS)
_SET = Name(_STATE, "set_global_attribute", _DIFFERS)
_MAKE_SEED = Name(_SEEDS, "make_default_seed", _DIFFERS)
_GENERATOR = Name(
    _SEEDS,
    "global_seed_generator",
    "ranks draw the same random numbers if no seed is given, and backups do not contain them",
)

NAMES = (_GET, _SET, _MAKE_SEED, _GENERATOR)

# Keras before 3.12 has no constant for it.
_ATTRIBUTE = "global_seed_generator"


def generator():
    """Returns Keras's global seed generator, which Keras creates at its first use."""
    return _GENERATOR.get()()


def has_generator():
    """Returns whether Keras has created the global seed generator."""
    return _GET.get()(_ATTRIBUTE) is not None


def drop_generator():
    """Deletes the global seed generator. Keras creates a new one at its next use."""
    _SET.get()(_ATTRIBUTE, None)


def draw_seed():
    """Draws a seed from Python's generator, as a seed generator without a seed does."""
    return _MAKE_SEED.get()()
