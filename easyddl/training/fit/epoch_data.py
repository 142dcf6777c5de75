"""Keras's iterator over the training data of a fit, which Keras does not show to callbacks."""

import time

from easyddl.compat import keras_data, keras_trainer


class EpochData:
    """The iterator over the training data of one fit.

    Attributes:
        iterator: Keras's `EpochIterator`; `None` before Keras has created it.
    """

    def __init__(self):
        self.iterator = None

    def watch(self, model):
        """Records the iterator when Keras passes it to the function that builds the model.

        Args:
            model: A Keras model whose fit has not begun.

        Returns:
            Function that undoes this.
        """

        def noting(original):
            def build(iterator=None, data_batch=None):
                # Later iterators belong to validations.
                self.iterator = self.iterator or iterator
                return original(iterator, data_batch)

            return build

        restore = keras_trainer.wrap_builder(model, noting)

        def undo():
            restore()
            self.iterator = None  # releases the iterator's threads

        return undo

    def end_epoch(self):
        """Ends the epoch of a `PyDataset` that Keras has left in the middle of the epoch.

        Keras leaves it there when training stops, and does not expect another epoch.
        """
        keras_data.end_epoch(self.iterator)

    def seconds_per_batch(self, model, most, seconds):
        """Measures how long the reading of a batch takes by itself, without training.

        It begins another epoch. What is read first is left out, because data begin by filling
        buffers. On JAX Keras may read the batches of an execution at a time.

        Args:
            model: The Keras model of the fit.
            most: Integer. The number of batches after which to stop.
            seconds: Float. The seconds after which to stop.

        Returns:
            Float; `None` if the data have no more than is left out.
        """
        self.end_epoch()
        several = model.steps_per_execution
        items = keras_data.items_of_epoch(self.iterator, several)
        next(items, None)
        number, begin, passed = 0, time.perf_counter(), 0.0
        for item in items:
            number += len(keras_data.Item(item, several))
            passed = time.perf_counter() - begin
            if number >= most or passed > seconds:
                break
        return passed / number if number else None
