"""Fits that begin without a batch, on backends where Keras needs one to build the model."""

from easyddl.compat import keras_data, keras_trainer


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
    original = keras_trainer.builder_of(model)

    def build(iterator=None, data_batch=None):
        if iterator is None:
            return original(data_batch=data_batch)
        try:
            return original(keras_data.OneBatch(lambda: keras_data.first_batch(iterator)))
        except keras_data.NoBatch:
            return None

    return keras_trainer.replace_builder(model, build)
