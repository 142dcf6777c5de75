"""Beginning a fit where Keras builds a model by the first batch before it calls its callbacks."""


class _NoBatch(Exception):
    """There is no batch to build with."""


def put_off_without_batch(model):
    """Has a model stay unbuilt where its data hold no batch, in place of an error.

    Keras builds all that a model computes with by the first batch of its data, on JAX and PyTorch
    before it calls a callback. A rank that has none is told of the others' later.

    Args:
        model: A Keras model.

    Returns:
        Function that takes that back.
    """
    original, name = model._symbolic_build, "_symbolic_build"

    def build(iterator=None, data_batch=None):
        if iterator is None:
            return original(data_batch=data_batch)
        try:
            return original(iterator=_first_of(iterator))
        except _NoBatch:
            return None

    object.__setattr__(model, name, build)
    return lambda: object.__delattr__(model, name)


def _first_of(iterator):
    """What an epoch iterator gives first, with the batch itself in place of an iterator."""
    adapter = getattr(iterator, "data_adapter", None)
    dataset = getattr(adapter, "py_dataset", None)
    if dataset is not None and dataset.num_batches != 0:
        # Drawn from its workers, that batch would be missing from the first epoch, and all later
        # ones would begin with what they have read ahead: each rank with another number of batches.
        yield 0, 0, [adapter._standardize_batch(dataset[0])]
        return
    for *steps, data in iterator:
        # An iterator, or in older versions of Keras and on PyTorch a list.
        for batch in data:
            yield (*steps, [batch])
            return
        break  # steps on JAX never end by themselves
    raise _NoBatch
