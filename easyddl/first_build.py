"""Beginning a fit without a batch, where Keras builds a model before it calls its callbacks."""


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

    object.__setattr__(model, name, build)
    return lambda: object.__delattr__(model, name)


def _watched(iterator):
    has_batches = False
    for each in iterator:
        has_batches = True
        yield each
    if not has_batches:
        raise _NoBatch
