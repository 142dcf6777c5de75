"""Keras's iterator over the data of a fit, of which it tells no callback."""

from easyddl.compat import keras_data, keras_trainer


class EpochData:
    """The data that one fit takes its steps from."""

    def __init__(self):
        self._iterator = None

    def watch(self, model):
        """Notes the iterator that Keras makes, and offers to what builds a model by a batch.

        Args:
            model: A Keras model, whose fit has not begun.

        Returns:
            Function that takes that back.
        """
        original = keras_trainer.builder_of(model)

        def build(iterator=None, data_batch=None):
            self._iterator = self._iterator or iterator  # later ones are a validation's
            return original(iterator, data_batch)

        restore = keras_trainer.replace_builder(model, build)

        def take_back():
            restore()
            self._iterator = None  # which has threads

        return take_back

    def end_epoch(self):
        """Ends an epoch in the middle of which Keras has left a `PyDataset`.

        Keras does so where training stops, and does not expect another epoch then.
        """
        keras_data.end_epoch(self._iterator)
