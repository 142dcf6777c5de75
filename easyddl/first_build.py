"""Beginning a fit where Keras builds a model by the first batch before it calls its callbacks."""

import queue


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
            return original(iterator=_watched(iterator))
        except _NoBatch:
            return None
        finally:
            _forget(iterator)

    object.__setattr__(model, name, build)
    return lambda: object.__delattr__(model, name)


def _watched(iterator):
    has_batches = False
    for each in iterator:
        has_batches = True
        yield each
    if not has_batches:
        raise _NoBatch


def _forget(iterator):
    """Drops what the workers of a `PyDataset` have read ahead meanwhile.

    Keras would begin the first epoch with it, and each rank with another number of batches, which
    the others have read too where the data are dealt out anew in each epoch.
    """
    enqueuer = getattr(getattr(iterator, "data_adapter", None), "enqueuer", None)
    if enqueuer is None:
        return
    enqueuer.stop()
    while True:
        try:
            enqueuer.ready_queue.get_nowait()
        except queue.Empty:
            return
