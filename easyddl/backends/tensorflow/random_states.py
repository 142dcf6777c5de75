"""What TensorFlow's operations take their random numbers from.

Keras's layers draw by seeds of their own, so TensorFlow's own generators hold nothing to restore.
"""

import tensorflow as tf

from easyddl.backends.base import Backend
from easyddl.backends.tensorflow import private


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
