"""The engine's channels for gradients: each serves one exchange, and then another."""

import functools
import operator

from easyddl import world

_channels = []  # made in the same order on all ranks
_free = set()


def lease():
    """Gives a channel to one exchange alone. All ranks must call it together.

    Returns:
        The channel's number, the same on all ranks, and the channel.
    """
    engine = world.engine()
    # A channel is set free at a time of its rank's own, such as when Python collects an
    # optimizer: the ranks take one that is free on all of them.
    mine = sum(1 << number for number in _free)
    everyones = engine.channel.gather_values(mine, world.signature("a channel for gradients"))
    common = functools.reduce(operator.and_, everyones)
    if common == 0:
        _channels.append(engine.core.Channel(engine.world, watch_signals=False))
        return len(_channels) - 1, _channels[-1]
    number = (common & -common).bit_length() - 1
    _free.remove(number)
    return number, _channels[number]


def release(number):
    """Takes a channel back."""
    _free.add(number)
