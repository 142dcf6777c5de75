"""Fits that begin without a batch, on backends where Keras needs one to build the model."""

from easyddl.compat import patches


class _NoBatch(Exception):
    """There is no batch to build with."""


def put_off_without_batch(model):
    """Lets a model stay unbuilt if its data hold no batch, in place of an error.

    On JAX and PyTorch, Keras builds all that a model computes with from the first batch of its
    data, before it calls a callback. A rank without a batch gets the structure of the other ranks'
    batches later, and builds the model then.

    Args:
        model: A Keras model.

    Returns:
        Function that undoes it.
    """
    original = model._symbolic_build

    def build(iterator=None, data_batch=None):
        if iterator is None:
            return original(data_batch=data_batch)
        try:
            return original(iterator=_first_of(iterator))
        except _NoBatch:
            return None

    return patches.replace(model, "_symbolic_build", build)


def _first_of(iterator):
    """What an epoch iterator gives first, with the batch itself in place of an iterator."""
    adapter = getattr(iterator, "data_adapter", None)
    dataset = getattr(adapter, "py_dataset", None)
    if dataset is not None and dataset.num_batches != 0:
        # A batch drawn from the dataset's workers would be missing from the first epoch, and all
        # later epochs would begin with what the workers have read ahead: each rank would have
        # another number of batches.
        yield 0, 0, [adapter._standardize_batch(dataset[0])]
        return
    for *steps, data in iterator:
        # An iterator, or in older versions of Keras and on PyTorch a list.
        for batch in data:
            yield (*steps, [batch])
            return
        break  # on JAX the steps never end by themselves
    raise _NoBatch
