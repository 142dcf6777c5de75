"""The adapter with which Keras draws batches from arrays, and the order of shuffled arrays."""

import contextlib
import copy

from easyddl.compat import patches
from easyddl.compat.names import Name, several

_MODULE = "keras.src.trainers.data_adapters.array_data_adapter"
_ADAPTER = f"{_MODULE}.ArrayDataAdapter"
_RESUMED = "other ranks cannot continue an epoch"
_DIFFERS = "a resumed training shuffles arrays into another order"

_CLASS = Name(_MODULE, "ArrayDataAdapter", _DIFFERS)
_CAN_CONVERT = Name(_MODULE, "can_convert_arrays(arrays)", _DIFFERS)

_ITERATORS = ("_get_iterator", "get_torch_dataloader", "get_tf_dataset")

NAMES = (
    _CLASS,
    _CAN_CONVERT,
    *several(_ADAPTER, dict.fromkeys(("_shuffle", "_num_samples"), _DIFFERS), is_set=True),
    *several(
        _ADAPTER,
        dict.fromkeys(("_size", "_batch_size", "_partial_batch_size"), _RESUMED),
        is_set=True,
    ),
    Name(_ADAPTER, "_get_iterator(slice_and_convert_fn, inputs)", _DIFFERS, backend="jax"),
    Name(_ADAPTER, "get_torch_dataloader", _DIFFERS, backend="torch"),
    Name(_ADAPTER, "get_tf_dataset", _DIFFERS, backend="tensorflow"),
    Name(_ADAPTER, "_tf_shuffle(tensors)", _DIFFERS, since=(3, 16), backend="tensorflow"),
)


def shuffles(arguments):
    """Returns whether a fit shuffles all samples of arrays, not only batches.

    Args:
        arguments: Dict of the arguments of `keras.Model.fit`.
    """
    shuffle, x = arguments.get("shuffle", True), arguments.get("x")
    if not shuffle or isinstance(shuffle, str) or x is None:
        return False
    return _CAN_CONVERT.get()((x, arguments.get("y"), arguments.get("sample_weight")))


def order_next(order, replacing_shuffle):
    """Replaces the order of the samples in the next adapter of shuffled arrays.

    Args:
        order: `training.array_order.ArrayOrder`. Its method `rows` is called with the number of
            samples when the first batch of a pass over the data is drawn, and returns an array of
            indices.
        replacing_shuffle: `Backend.replacing_shuffle`.

    Returns:
        Function without arguments that undoes the change if no such adapter has been made.
    """
    adapter = _CLASS.get()
    original = adapter.__init__

    def make(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if self._shuffle and self._shuffle != "batch":
            undo()
            _order(self, order, replacing_shuffle)

    undo = patches.replace(adapter, "__init__", make)
    return undo


def _order(adapter, order, replacing_shuffle):
    """Replaces the order of the samples in an adapter, for the batches of every backend."""
    samples = adapter._num_samples
    iterate, load, dataset = (getattr(adapter, name, None) for name in _ITERATORS)

    def get_iterator(slice_and_convert_fn, inputs):
        rows = order.rows(samples)

        def convert(sliceable, indices):
            return slice_and_convert_fn(sliceable, indices=rows[indices])

        yield from iterate(convert, inputs)

    def get_torch_dataloader():
        loader = load()
        loader.batch_sampler.sampler = _Rows(order, samples)
        return loader

    def get_tf_dataset():
        with contextlib.ExitStack() as stack:
            shuffle = stack.enter_context(replacing_shuffle(order, samples))
            stack.enter_context(patches.replaced(adapter, "_shuffle", True))
            if hasattr(adapter, "_tf_shuffle"):
                stack.enter_context(patches.replaced(adapter, "_tf_shuffle", shuffle))
            return dataset()

    adapter._shuffle = False  # except while `get_tf_dataset` makes a dataset
    changed = (get_iterator, get_torch_dataloader, get_tf_dataset)
    patches.replace_all(adapter, dict(zip(_ITERATORS, changed, strict=True)), lasts=True)


def adapter_of(iterator):
    """Returns the adapter of an epoch iterator if it is one of arrays, otherwise `None`."""
    adapter = iterator.data_adapter
    return adapter if isinstance(adapter, _CLASS.get()) else None


def samples_of(adapter):
    """Returns the number of samples of an adapter of arrays."""
    return adapter._num_samples


def of_rows(adapter, rows, replacing_shuffle):
    """Returns a copy of an adapter that draws only some rows of its arrays.

    Args:
        adapter: An adapter of arrays.
        rows: Integer array of indices, in the order in which to draw them.
        replacing_shuffle: `Backend.replacing_shuffle`.
    """
    some = copy.copy(adapter)
    for name in _ITERATORS:
        vars(some).pop(name, None)  # which would draw all rows
    some._num_samples = len(rows)
    some._size = -(-len(rows) // some._batch_size)
    some._partial_batch_size = len(rows) % some._batch_size
    _order(some, _Fixed(rows), replacing_shuffle)
    return some


class _Fixed:
    """An order that does not change."""

    def __init__(self, rows):
        self._rows = rows

    def on_change(self, act):
        pass

    def rows(self, samples):
        return self._rows


class _Rows:
    """A sampler of PyTorch: yields the indices of the samples in their order.

    Args:
        order: `training.array_order.ArrayOrder`.
        samples: Integer. The number of samples.
    """

    def __init__(self, order, samples):
        self._order = order
        self._samples = samples

    def __len__(self):
        return self._samples

    def __iter__(self):
        yield from self._order.rows(self._samples).tolist()
