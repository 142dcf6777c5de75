"""The collectives as the script calls them.

Within a fit they have a communicator of their own: see `world.communicator`.
"""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import TypeVar

from easyddl.collectives import arrays, objects, variables
from easyddl.runtime import world

_Collective = TypeVar("_Collective", bound=Callable)

_passed = 0  # see `take_passed`


def take_passed():
    """Returns how many numbers the script has passed to other ranks since the last call of this.

    The collectives that gather count. The script may have averaged gradients by them. `allreduce`
    notes what it reduces by itself.
    """
    global _passed
    passed, _passed = _passed, 0
    return passed


def _counted(collective: _Collective) -> _Collective:
    """Wraps a collective of the script so that `take_passed` counts its arguments."""

    @functools.wraps(collective)
    def call(*args, **kwargs):
        global _passed
        with contextlib.suppress(Exception):  # the collective itself says what is wrong
            _passed += _count((*args, *kwargs.values()))
        return collective(*args, **kwargs)

    return call  # type: ignore[return-value]


def _count(value):
    if isinstance(value, dict):
        return sum(map(_count, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_count, value))
    if isinstance(value, float):
        return 1
    return math.prod(value.shape) if hasattr(value, "shape") else 0


allgather = _counted(world.on_all_ranks("allgather()", of_script=True)(arrays.allgather))
alltoall = _counted(world.on_all_ranks("alltoall()", of_script=True)(arrays.alltoall))
broadcast = world.on_all_ranks("broadcast()", of_script=True)(arrays.broadcast)
reduce_scatter = _counted(
    world.on_all_ranks("reduce_scatter()", of_script=True)(arrays.reduce_scatter)
)
reduce_between_steps = world.on_all_ranks("allreduce()", of_script=True)(
    arrays.reduce_between_steps
)

allgather_object = _counted(
    world.on_all_ranks("allgather_object()", of_script=True)(objects.allgather_object)
)
broadcast_object = world.on_all_ranks("broadcast_object()", of_script=True)(
    objects.broadcast_object
)

broadcast_variables = world.on_all_ranks("broadcast_variables()", of_script=True)(
    variables.broadcast_variables
)
