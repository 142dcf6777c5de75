"""What TensorFlow's operations take their random numbers from.

Keras's layers draw by seeds of their own, so TensorFlow's own generators hold nothing to restore.
"""

import contextlib

import tensorflow as tf

from easyddl.backends.base import Backend
from easyddl.backends.tensorflow import private
from easyddl.compat import patches


class TensorFlowRandomStates(Backend):
    """Random numbers of a `TensorFlowBackend`."""

    def op_seeds(self):
        """What operations such as `tf.random.normal` take their seeds from.

        Returns:
            Pair of the seed that the user has set and the state of the generator that makes seeds
            of operations from it; `None` if none is set, and so each process draws other numbers.
        """
        seed = private.global_seed()
        return None if seed is None else (seed, private.op_seed_state())

    def set_op_seeds(self, seeds):
        seed, state = seeds
        tf.random.set_seed(seed)
        if state is not None:
            private.set_op_seed_state(state)

    def draw_seed(self):
        return int(tf.random.uniform((), maxval=2**31 - 1, dtype=tf.int32))

    @contextlib.contextmanager
    def replacing_shuffle(self, order, samples):
        # A variable, which each pass over the dataset reads. A Python function would be called in
        # a thread of tf.data, possibly while the interpreter ends.
        with tf.device("CPU:0"):
            rows = tf.Variable(order.rows(samples), trainable=False, dtype=tf.int64)
        order.on_change(lambda: rows.assign(order.rows(samples)))

        def shuffle(indices):
            return tf.cast(rows.read_value(), indices.dtype)

        with patches.replaced(tf.random, "shuffle", shuffle):
            yield shuffle
