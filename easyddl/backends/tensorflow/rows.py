"""TensorFlow's sparse gradients, as the rows that each rank has of them."""

import tensorflow as tf


class Rows:
    """The sparse gradients of an exchange, whose rows all ranks bring together at every step.

    Args:
        number: Integer. The engine's number of the exchange.
        indices: List of integers. Which of the exchange's gradients they are.
        shapes: List of tuples. The shape of each of the exchange's gradients.
    """

    def __init__(self, number, indices, shapes):
        self._number = number
        self._indices = indices
        self._shapes = [shapes[i] for i in indices]

    def of(self, gradients):
        """The sparse ones of all gradients."""
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
        """All ranks' rows, as a dict of `tf.IndexedSlices` by index, and the number 1."""
        with tf.device("CPU:0"):
            indices, values, count = library.easyddl_gather(
                indices=[tf.cast(each.indices, tf.int64) for each in slices],
                values=[each.values for each in slices],
                step=step,
                weight=weight,
                exchange=self._number,
                shapes=[n for shape in self._shapes for n in (len(shape), *shape)],
            )
        gathered = zip(indices, values, slices, self._shapes, strict=True)
        everyones = [_slices(i, v, mine.indices.dtype, shape) for i, v, mine, shape in gathered]
        return dict(zip(self._indices, everyones, strict=True)), count


def no_rows(dtype, shape):
    """A sparse gradient without rows."""
    return _slices(tf.zeros([0], tf.int64), tf.zeros([0, *shape[1:]], dtype), tf.int64, shape)


def _slices(indices, values, index_dtype, shape):
    values.set_shape([None, *shape[1:]])
    indices.set_shape([None])
    indices = tf.cast(indices, index_dtype)
    return tf.IndexedSlices(values, indices, tf.constant(shape, index_dtype))
