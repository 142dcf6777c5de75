"""Gathers the rows of TensorFlow's sparse gradients from all ranks."""

import tensorflow as tf

from easyddl.backends.tensorflow import shared_rows


class Rows:
    """The sparse gradients of a registration. All ranks gather their rows at every step.

    Args:
        engine: `_core.Reducer`.
        sparse: Dict of lists of booleans, by the index of a sparse gradient in the registration:
            see `Submitter.gather_rows_of`.
        shapes: List of tuples. The shape of each registered gradient.
    """

    def __init__(self, engine, sparse, shapes):
        self._engine = engine
        self._shapes = {i: shapes[i] for i in sparse}
        self._shared = {i: parts for i, parts in sparse.items() if any(parts)}

    def of(self, gradients):
        """Returns the sparse gradients among all registered gradients, as a dict by index."""
        for i, shape in self._shapes.items():
            if not isinstance(gradients[i], tf.IndexedSlices):
                raise RuntimeError(
                    f"A gradient of shape {shape} is dense, but was sparse (tf.IndexedSlices) when "
                    "the ranks registered their gradients. Compute it in the same way in all "
                    "steps, or pass sparse_as_dense=True."
                )
        return {i: gradients[i] for i in self._shapes}

    def gather(self, library, slices, step, weight):
        """Returns the rows of all ranks.

        Args:
            library: The operations of `ext/bindings/tensorflow_op.cpp`.
            slices: Dict of this rank's `tf.IndexedSlices`, from `of`.
            step: Integer tensor. The number of the step.
            weight: Scalar float32 tensor. The weight of this rank's batch.

        Returns:
            Pair of a dict of `tf.IndexedSlices` by index, and a tensor that holds the number 1.
        """
        with tf.device("CPU:0"):
            own, shared = self._tables(slices)
            shapes = [self._shapes[i] for i in (*own, *shared)]
            sent = [*own.values(), *shared.values()]
            indices, values, count = library.easyddl_gather(
                indices=[tf.cast(each, tf.int64) for each, _ in sent],
                values=[each for _, each in sent],
                step=step,
                weight=weight,
                reducer=self._engine.number,
                shapes=[n for shape in shapes for n in (len(shape), *shape)],
            )
            gathered = [_with_shape(*each) for each in zip(indices, values, shapes, strict=True)]
            result = dict(zip(own, gathered, strict=False))
            for i, rows in zip(shared, gathered[len(own) :], strict=True):
                pairs = zip(result[i], shared_rows.added_up(*rows), strict=True)
                result[i] = [tf.concat(each, 0) for each in pairs]
        return {
            i: _slices(*rows, slices[i].indices.dtype, self._shapes[i])
            for i, rows in result.items()
        }, count

    def _tables(self, slices):
        """Splits this rank's rows into the two kinds of tables that the engine has.

        Returns:
            Two dicts by index: pairs of the indices and the values of all rows that are not shared,
            and pairs of the numbers and the values of shared rows.
        """
        own, shared = {}, {}
        for i, each in slices.items():
            own[i] = each.indices, each.values
            if i in self._shared:
                own[i], shared[i] = shared_rows.split(each, self._shared[i])
        return own, shared


def no_rows(dtype, shape):
    """Returns a sparse gradient without rows."""
    indices, values = tf.zeros([0], tf.int64), tf.zeros([0, *shape[1:]], dtype)
    return _slices(indices, values, tf.int64, shape)


def _with_shape(indices, values, shape):
    values.set_shape([None, *shape[1:]])
    indices.set_shape([None])
    return indices, values


def _slices(indices, values, index_dtype, shape):
    indices = tf.cast(indices, index_dtype)
    return tf.IndexedSlices(values, indices, tf.constant(shape, index_dtype))
