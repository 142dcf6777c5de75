"""Keras's iterator over the training data of a fit, which Keras does not show to callbacks."""

from easyddl.compat import keras_data, keras_trainer


class EpochData:
    """The iterator over the training data of one fit."""

    def __init__(self):
        self._iterator = None

    def watch(self, model):
        """Records the iterator when Keras passes it to the function that builds the model.

        Args:
            model: A Keras model whose fit has not begun.

        Returns:
            Function that undoes this.
        """
        original = keras_trainer.builder_of(model)

        def build(iterator=None, data_batch=None):
            # Later iterators belong to validations.
            self._iterator = self._iterator or iterator
            return original(iterator, data_batch)

        restore = keras_trainer.replace_builder(model, build)

        def undo():
            restore()
            self._iterator = None  # releases the iterator's threads

        return undo

    def end_epoch(self):
        """Ends the epoch of a `PyDataset` that Keras has left in the middle of the epoch.

        Keras leaves it there when training stops, and does not expect another epoch.
        """
        keras_data.end_epoch(self._iterator)
