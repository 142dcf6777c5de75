"""TensorFlow's tensors, variables and sparse gradients."""

import warnings

import keras
import numpy as np
import tensorflow as tf

from easyddl.backends.base import Backend
from easyddl.backends.tensorflow import private, shared_rows, step


def to_dense(gradient):
    """Returns a gradient as a dense tensor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's warning about the memory
        return tf.convert_to_tensor(gradient)


class TensorFlowTensors(Backend):
    """Tensors of a `TensorFlowBackend`."""

    is_symbolic = staticmethod(step.is_symbolic)
    to_dense = staticmethod(to_dense)

    def is_tensor(self, x):
        return isinstance(x, tf.Tensor | tf.Variable | tf.IndexedSlices | keras.Variable)

    def to_numpy(self, x):
        x = tf.convert_to_tensor(x)
        if not hasattr(x, "numpy"):
            raise TypeError(
                "`x` is a symbolic tensor, but collectives take values, outside of tf.function. In "
                "a custom training loop wrap the optimizer in `ddl.DistributedOptimizer`, which "
                f"reduces gradients inside of tf.function too. Received: {x}"
            )
        return np.asarray(x.numpy())

    def from_numpy(self, array, like):
        return tf.convert_to_tensor(array)

    def checkpoint_writers(self):
        return [(private.checkpoint_writer(), "save")]

    def has_rows(self, gradient):
        # XLA needs arrays of fixed length, but the number of rows differs between ranks and steps.
        return isinstance(gradient, tf.IndexedSlices) and not step.is_compiled_by_xla()

    def shared_parts(self, gradient):
        return shared_rows.are_shared(gradient.indices)
