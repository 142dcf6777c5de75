"""The adapter with which Keras draws batches from arrays, and the order of shuffled arrays."""

import contextlib

from easyddl.compat import patches
from easyddl.compat.names import Name, several

_MODULE = "keras.src.trainers.data_adapters.array_data_adapter"
_ADAPTER = f"{_MODULE}.ArrayDataAdapter"
_DIFFERS = "a resumed training shuffles arrays into another order"

_CLASS = Name(_MODULE, "ArrayDataAdapter", _DIFFERS)
_CAN_CONVERT = Name(_MODULE, "can_convert_arrays", _DIFFERS, takes=("arrays",))

NAMES = (
    _CLASS,
    _CAN_CONVERT,
    *several(_ADAPTER, dict.fromkeys(("_shuffle", "_num_samples"), _DIFFERS), is_set=True),
    Name(
        _ADAPTER,
        "_get_iterator",
        _DIFFERS,
        backend="jax",
        takes=("slice_and_convert_fn", "inputs"),
    ),
    Name(_ADAPTER, "get_torch_dataloader", _DIFFERS, backend="torch"),
    Name(_ADAPTER, "get_tf_dataset", _DIFFERS, backend="tensorflow"),
    Name(
        _ADAPTER, "_tf_shuffle", _DIFFERS, since=(3, 16), backend="tensorflow", takes=("tensors",)
    ),
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
    iterate, load, dataset = (
        getattr(adapter, name, None)
        for name in ("_get_iterator", "get_torch_dataloader", "get_tf_dataset")
    )

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
    patches.replace_all(
        adapter,
        {
            "_get_iterator": get_iterator,
            "get_torch_dataloader": get_torch_dataloader,
            "get_tf_dataset": get_tf_dataset,
        },
    )


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
