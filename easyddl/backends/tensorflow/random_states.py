"""The seeds of TensorFlow's random operations.

Keras's layers have their own seed generators. Therefore no state of TensorFlow's generators must be
restored.
"""

import contextlib

import tensorflow as tf

from easyddl.backends.base import Backend
from easyddl.backends.tensorflow import private
from easyddl.compat import patches


class TensorFlowRandomStates(Backend):
    """Random numbers of a `TensorFlowBackend`."""

    def op_seeds(self):
        """Returns the state from which operations such as `tf.random.normal` derive their seeds.

        Returns:
            Pair of the global seed that the user set and the state of the generator that derives
            operations' seeds from it. `None` if the user set no seed: then each process draws
            different numbers.
        """
        seed = private.global_seed()
        return None if seed is None else (seed, private.op_seed_state())

    def set_op_seeds(self, seeds):
        private.set_op_seeds(*seeds)

    def draw_seed(self):
        return int(tf.random.uniform((), maxval=2**31 - 1, dtype=tf.int32))

    @contextlib.contextmanager
    def replacing_shuffle(self, order, samples):
        # Each pass over the dataset reads this variable. A Python function would be called in a
        # thread of tf.data, possibly while the interpreter shuts down.
        with tf.device("CPU:0"):
            rows = tf.Variable(order.rows(samples), trainable=False, dtype=tf.int64)
        order.on_change(lambda: rows.assign(order.rows(samples)))

        def shuffle(indices):
            return tf.cast(rows.read_value(), indices.dtype)

        with patches.replaced(tf.random, "shuffle", shuffle):
            yield shuffle
