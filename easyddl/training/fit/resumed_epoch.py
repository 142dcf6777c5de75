"""The rest of an epoch that another number of ranks has begun.

Each rank takes the items of its shard that no rank has used. These follow from the numbers of
ranks, the seeds and the steps of the earlier starts, so a backup contains no list of samples.
"""

import contextlib
import dataclasses

import keras
import numpy as np

from easyddl import backends
from easyddl.compat import keras_arrays, keras_data, patches
from easyddl.data import split_calls
from easyddl.data.kinds import is_a
from easyddl.data.shard import EPOCH


class EpochItems:
    """The items of a fit's data, of which it is known which ones each step takes.

    Args:
        fit: `FitContext`.
        shard: The `Shard` of this rank.
        items: Integer. The number of items of all ranks: samples, or batches.
        items_per_step: Integer. The number of this rank's items in a step.
        sharded: The dataset or the sampler that takes the shard; `None` if the data are arrays.
    """

    def __init__(self, fit, shard, items, items_per_step, sharded=None):
        self._fit = fit
        self._shard = shard
        self._items = int(items)
        self._sharded = sharded
        self.items_per_step = int(items_per_step)

    @property
    def layout(self):
        """What all starts of a job must have in common, as JSON data."""
        shard = self._shard
        return {
            "kind": "arrays" if self._sharded is None else type(self._sharded).__name__,
            "items": self._items,
            "split": [str(shard.shuffle), shard.seed, shard.remainder],
            "is_shuffled": self._fit.array_order is not None,
        }

    def take_rest(self, epoch, starts):
        """Leaves out the items of an epoch that earlier starts have used.

        Args:
            epoch: Integer, from 0. The fit's `array_order` has this epoch.
            starts: List of pairs of integers: the number of ranks of a start, and of the items that
                each rank has taken.

        Returns:
            Function without arguments that undoes this when the epoch has ended; `None` if no rank
            has an item left.
        """
        used = self._used(starts)
        kept = used[: self._shard.kept(self._items)]
        if kept.all():
            return None
        iterator = self._fit.data.iterator
        with contextlib.ExitStack() as undo:
            self._fit.part_before = float(kept.mean())
            undo.callback(setattr, self._fit, "part_before", 0.0)
            if self._sharded is None:
                shard = self._shard
                mine = self._in_order(shard.rank, shard.size)
                rows = (mine[~used[mine]] - shard.rank) // shard.size
                shuffle = backends.require().replacing_shuffle
                adapter = keras_arrays.of_rows(iterator.data_adapter, rows, shuffle)
                undo.callback(keras_data.shorten_epoch(iterator, adapter.num_batches, adapter))
            else:
                # What is used is the start of an order, which does not depend on the ranks.
                rest = dataclasses.replace(self._shard, taken=(epoch, int(used.sum())))
                undo.callback(patches.replace(self._sharded, "shard", rest))
                self._sharded.set_epoch(epoch)
                batches = len(self._fit.arguments["x"])
                undo.callback(keras_data.shorten_epoch(iterator, batches))
            return undo.pop_all().close

    def _used(self, starts):
        """Returns whether each item was used, by its position in the order of the split."""
        used = np.zeros(self._items, bool)
        for size, taken in starts:
            before = used.copy()
            for rank in range(size):
                mine = self._in_order(rank, size)
                used[mine[~before[mine]][:taken]] = True
        return used

    def _in_order(self, rank, size):
        """Returns the positions of a rank's items, in the order in which it takes them."""
        shard = dataclasses.replace(self._shard, rank=rank, size=size)
        whole = shard.positions(self._items)
        mine = np.arange(whole.start, whole.stop, whole.step)
        order = self._fit.array_order
        return mine if order is None else mine[order.rows(len(mine), rank)]


def items_of(fit):
    """Returns the `EpochItems` of a fit, after Keras has created the iterator over its data.

    Args:
        fit: `FitContext`.

    Returns:
        `EpochItems`; `None` if it is not known which samples a step takes, or if the ranks may not
        take different numbers of steps.
    """
    arguments, iterator = fit.arguments, fit.data.iterator
    if iterator is None or iterator.steps_per_epoch or fit.first.uneven == "error":
        return None
    x, shuffle = arguments.get("x"), arguments.get("shuffle", True)
    if is_a(x, "easyddl", "EpochOrder"):
        # Keras would shuffle the batches of each rank.
        has_order = not shuffle or x.shard.shuffle == EPOCH
        return _sharded(fit, x, x.items_per_step) if has_order else None
    for name in ("sampler", "batch_sampler"):
        sampler = getattr(x, name, None)
        if is_a(sampler, "easyddl", "RankSampler"):
            return _sharded(fit, sampler, x.batch_size if name == "sampler" else 1)
    leaves = keras.tree.flatten([arguments.get(name) for name in ("x", "y", "sample_weight")])
    found = next(filter(None, map(split_calls.result_of, leaves)), None)
    adapter = keras_arrays.adapter_of(iterator)
    if found is None or adapter is None or isinstance(shuffle, str):
        return None
    # Keras may hold out a part for the validation.
    if keras_arrays.samples_of(adapter) != found.shard.length(found.items):
        return None
    return EpochItems(fit, found.shard, found.items, adapter.batch_size)


def _sharded(fit, sharded, items_per_step):
    if sharded.items is None:
        return None
    return EpochItems(fit, sharded.shard, sharded.items, items_per_step, sharded)
