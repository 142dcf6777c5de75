"""TensorFlow's sparse gradients, as the rows that each rank has of them."""

import tensorflow as tf


class Rows:
    """The sparse gradients of a registration, whose rows all ranks gather at every step.

    Args:
        engine: `_core.Reducer`.
        indices: List of integers. Which of the registered gradients are sparse.
        shapes: List of tuples. The shape of each registered gradient.
    """

    def __init__(self, engine, indices, shapes):
        self._engine = engine
        self._indices = indices
        self._shapes = [shapes[i] for i in indices]

    def of(self, gradients):
        """The sparse ones of all registered gradients."""
        slices = [gradients[i] for i in self._indices]
        for each, shape in zip(slices, self._shapes, strict=True):
            if not isinstance(each, tf.IndexedSlices):
                raise RuntimeError(
                    f"A gradient of shape {shape} is dense, and was sparse (tf.IndexedSlices) when "
                    "the ranks registered the gradients that they exchange. Compute it in the same "
                    "way in all steps, or pass sparse_as_dense=True."
                )
        return slices

    def gather(self, library, slices, step, weight):
        """The rows of all ranks.

        Args:
            library: The operations of `ext/tensorflow_op.cpp`.
            slices: List of this rank's `tf.IndexedSlices`, from `of`.
            step: Integer tensor. The number of the step.
            weight: Scalar float32 tensor. The weight of this rank's batch.

        Returns:
            Pair of a dict of `tf.IndexedSlices` by index, and a tensor that holds the number 1.
        """
        with tf.device("CPU:0"):
            indices, values, count = library.easyddl_gather(
                indices=[tf.cast(each.indices, tf.int64) for each in slices],
                values=[each.values for each in slices],
                step=step,
                weight=weight,
                exchange=self._engine.number,
                shapes=[n for shape in self._shapes for n in (len(shape), *shape)],
            )
        gathered = zip(indices, values, slices, self._shapes, strict=True)
        all_rows = [_slices(i, v, mine.indices.dtype, shape) for i, v, mine, shape in gathered]
        return dict(zip(self._indices, all_rows, strict=True)), count


def no_rows(dtype, shape):
    """A sparse gradient without rows."""
    return _slices(tf.zeros([0], tf.int64), tf.zeros([0, *shape[1:]], dtype), tf.int64, shape)


def _slices(indices, values, index_dtype, shape):
    values.set_shape([None, *shape[1:]])
    indices.set_shape([None])
    indices = tf.cast(indices, index_dtype)
    return tf.IndexedSlices(values, indices, tf.constant(shape, index_dtype))
