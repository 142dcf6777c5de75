"""Keras's global seed generator, which draws for all that has no generator of its own."""

from easyddl.compat.names import Name

_STATE = "keras.src.backend.common.global_state"
_SEEDS = "keras.src.random.seed_generator"
_DIFFERS = "what a script draws at random after a fit is not what one process draws"

_GET = Name(_STATE, "get_global_attribute", _DIFFERS)
_SET = Name(_STATE, "set_global_attribute", _DIFFERS)
_MAKE_SEED = Name(_SEEDS, "make_default_seed", _DIFFERS)
_GENERATOR = Name(
    _SEEDS,
    "global_seed_generator",
    "ranks draw the same random numbers where no seed is given, and backups do not hold them",
)

NAMES = (_GET, _SET, _MAKE_SEED, _GENERATOR)

# Keras before 3.12 has no constant for it.
_ATTRIBUTE = "global_seed_generator"


def generator():
    """Keras's global seed generator, which is made at its first use."""
    return _GENERATOR.get()()


def has_generator():
    """Whether the global seed generator has been made."""
    return _GET.get()(_ATTRIBUTE) is not None


def drop_generator():
    """Has Keras make another global seed generator at its next use."""
    _SET.get()(_ATTRIBUTE, None)


def draw_seed():
    """Draws what a seed generator without a seed takes: a number of Python's generator."""
    return _MAKE_SEED.get()()
