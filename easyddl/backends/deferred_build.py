"""Beginning a fit where Keras builds a model by the first batch before it calls its callbacks."""

from easyddl.compat import keras_data, keras_trainer


def put_off_without_batch(model):
    """Has a model stay unbuilt where its data hold no batch, in place of an error.

    Keras builds all that a model computes with by the first batch of its data, on JAX and PyTorch
    before it calls a callback. A rank that has none is told of the others' later.

    Args:
        model: A Keras model.

    Returns:
        Function that takes that back.
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
