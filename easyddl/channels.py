"""The engine's channels for gradients: each serves one exchange, and then another."""

import functools
import operator

from easyddl import world

_channels = []  # made in the same order on all ranks
_free = set()
_BITS = 62  # of a number that the ranks compare


def lease():
    """Gives a channel to one exchange alone. All ranks must call it together.

    Returns:
        The channel's number, the same on all ranks, and the channel.
    """
    engine = world.engine()
    # A channel is set free at a time of its rank's own, such as when Python collects an
    # optimizer: the ranks take one that is free on all of them.
    number = _first_free_on_all(engine)
    if number is None:
        _channels.append(engine.core.Channel(engine.world, watch_signals=False))
        return len(_channels) - 1, _channels[-1]
    _free.remove(number)
    return number, _channels[number]


def _first_free_on_all(engine):
    """The lowest number that is free on all ranks, or `None`."""
    for begin in range(0, len(_channels), _BITS):
        mine = sum(1 << (number - begin) for number in _free if begin <= number < begin + _BITS)
        everyones = engine.channel.gather_values(mine, world.signature("a channel for gradients"))
        common = functools.reduce(operator.and_, everyones)
        if common:
            return begin + (common & -common).bit_length() - 1
    return None


def release(number):
    """Takes a channel back."""
    _free.add(number)
