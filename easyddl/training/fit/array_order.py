"""The order into which a fit shuffles arrays.

Keras draws it from the framework's random numbers, whose state a backup does not hold on all
backends. Keras 3.16 draws it from the number of the epoch alone, so that the same samples of all
ranks always meet in a step. Here it is a function of a seed, the epoch and the rank.
"""

import numpy as np

from easyddl import backends
from easyddl.compat import keras_arrays
from easyddl.runtime import world


class ArrayOrder:
    """The order of the arrays of one fit on this rank.

    Args:
        seed: Non-negative integer, the same on all ranks.

    Attributes:
        seed: Non-negative integer. A resumed fit continues with the seed of the interrupted one.
        epoch: Integer, from 0. The epoch whose order is drawn.
    """

    def __init__(self, seed):
        self.seed = seed
        self.epoch = 0
        self._rank = world.rank()
        self._hooks = []

    def on_change(self, act):
        """Calls `act` after each change of the order."""
        self._hooks.append(act)

    def change(self, *, seed=None, epoch=None):
        """Changes the seed or the epoch, before the first batch of an epoch is drawn."""
        self.seed = self.seed if seed is None else seed
        self.epoch = self.epoch if epoch is None else epoch
        for act in self._hooks:
            act()

    def rows(self, samples, rank=None):
        """Returns the order of a rank's samples in this epoch, as an array of indices.

        Args:
            samples: Integer. The number of these samples.
            rank: Integer. Defaults to this rank.
        """
        rank = self._rank if rank is None else rank
        return np.random.default_rng([self.seed, self.epoch, rank]).permutation(samples)


def draw_seed(arguments):
    """Draws the seed of a fit's order, from the generator that Keras would take the order from.

    So a job that sets seeds finds the same orders each time.

    Args:
        arguments: Dict of the arguments of `keras.Model.fit`.

    Returns:
        Non-negative integer; `None` if the fit does not shuffle arrays.
    """
    return backends.require().draw_seed() if keras_arrays.shuffles(arguments) else None


def create_order(fit, seeds):
    """Determines the order of a fit's arrays, if it shuffles arrays.

    Args:
        fit: `FitContext` of a fit that Keras has not begun.
        seeds: List of what the ranks have drawn, by rank. The first rank whose data are arrays
            counts.

    Returns:
        `ArrayOrder`, or `None`.
    """
    if seeds[world.rank()] is None:
        return None
    order = ArrayOrder(next(seed for seed in seeds if seed is not None))
    undo = keras_arrays.order_next(order, backends.require().replacing_shuffle)
    fit.at_end.callback(undo)
    return order
