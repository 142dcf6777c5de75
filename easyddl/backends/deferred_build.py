"""Defers the build of a model in a fit on a rank that has no batch."""

from easyddl.compat import keras_data, keras_trainer


def defer_without_batch(model):
    """Makes Keras leave a model unbuilt if its data contain no batch, instead of raising an error.

    Keras builds a model, its optimizer and its metrics from the first batch. On JAX and PyTorch it
    does so before it calls any callback. A rank without a batch later builds from the structure of
    the other ranks' batches.

    Args:
        model: A Keras model.

    Returns:
        Function without arguments that undoes the change.
    """
    original = keras_trainer.builder_of(model)

    def build(iterator=None, data_batch=None):
        if iterator is None:
            return original(data_batch=data_batch)
        try:
            return original(keras_data.OneBatch(lambda: keras_data.first_batch(iterator)))
        except keras_data.NoBatch:
            return None

    return keras_trainer.replace_builder(model, build)
