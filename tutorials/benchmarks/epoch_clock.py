"""How long the epochs of a fit take."""

import time

import keras


class EpochClock(keras.callbacks.Callback):
    """Measures epochs.

    Attributes:
        seconds: Tuple of floats. What each has taken.
    """

    seconds = ()

    def on_epoch_begin(self, epoch, logs=None):
        self.begin = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        # Keras has asked for the metrics, and so has waited for the last step.
        self.seconds = (*self.seconds, time.perf_counter() - self.begin)
