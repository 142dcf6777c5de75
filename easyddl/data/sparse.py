"""Selects rows of sparse arrays and tensors of SciPy, TensorFlow, JAX and PyTorch."""

import sys

import numpy as np

from easyddl.data.kinds import is_a


def is_sparse(leaf):
    """Returns whether a leaf is a sparse array or tensor with rows that `take_rows` can take."""
    return _rows_by_kind(leaf) is not None


def take_rows(leaf, rows):
    """Takes rows of a sparse array or tensor.

    Args:
        leaf: The array or tensor, of shape `(samples, ...)`.
        rows: Slice, or integer array of different indices.

    Returns:
        An array or tensor of the same format.
    """
    return _rows_by_kind(leaf)(leaf, rows)


def to_dense(leaf):
    """Returns a sparse array or tensor as a dense NumPy array."""
    if is_a(leaf, "tensorflow"):
        return sys.modules["tensorflow"].sparse.to_dense(leaf).numpy()
    if is_a(leaf, "torch"):
        return leaf.detach().cpu().to_dense().numpy()
    return np.asarray(leaf.todense() if is_a(leaf, "jax") else leaf.toarray())


def _rows_by_kind(leaf):
    if hasattr(leaf, "tocsr"):
        return _take_scipy
    if is_a(leaf, "tensorflow", "SparseTensor"):
        return _take_tensorflow
    if is_a(leaf, "jax", "BCOO"):
        return _take_jax
    if is_a(leaf, "torch") and getattr(leaf, "is_sparse", False):
        return _take_torch
    if is_a(leaf, "torch") and str(getattr(leaf, "layout", "")) == "torch.sparse_csr":
        return lambda leaf, rows: _take_torch(leaf.to_sparse_coo(), rows).to_sparse_csr()
    return None


def _take_scipy(leaf, rows):
    # Some formats of sparse matrices cannot be indexed.
    return leaf.tocsr()[rows].asformat(leaf.format)


def _indices_of(rows, count):
    return np.arange(count)[rows] if isinstance(rows, slice) else np.asarray(rows)


def _taken(indices, rows, count):
    """Finds the elements that lie in some rows, and their places in the result.

    Args:
        indices: Integer array with two axes. The place of each element, the row first.
        rows: Slice, or integer array of different indices. The rows to take.
        count: Integer. The number of all rows.

    Returns:
        Tuple: the numbers of the elements, sorted by their rows in the result; their places in the
        result; and the number of rows of the result.
    """
    kept = _indices_of(rows, count)
    new_rows = np.full(count, -1)
    new_rows[kept] = np.arange(len(kept))
    new_rows = new_rows[indices[:, 0]]
    found = np.flatnonzero(new_rows >= 0)
    order = found[np.argsort(new_rows[found], kind="stable")]
    taken = indices[order]
    taken[:, 0] = new_rows[order]
    return order, taken, len(kept)


def _take_tensorflow(leaf, rows):
    tf = sys.modules["tensorflow"]
    order, taken, count = _taken(leaf.indices.numpy(), rows, int(leaf.shape[0]))
    shape = (count, *leaf.dense_shape.numpy()[1:])
    result = tf.sparse.SparseTensor(taken, tf.gather(leaf.values, order), shape)
    return tf.sparse.reorder(result)


def _take_jax(leaf, rows):
    if leaf.n_batch or not leaf.n_sparse:
        raise TypeError(
            "`split_data` takes a jax.experimental.sparse.BCOO without batch dimensions. "
            f"Received: n_batch={leaf.n_batch}, n_sparse={leaf.n_sparse}"
        )
    order, taken, count = _taken(np.array(leaf.indices), rows, leaf.shape[0])
    jnp = sys.modules["jax.numpy"]
    data = leaf.data[jnp.asarray(order)]
    return type(leaf)((data, jnp.asarray(taken)), shape=(count, *leaf.shape[1:]))


def _take_torch(leaf, rows):
    torch = sys.modules["torch"]
    indices = torch.as_tensor(_indices_of(rows, leaf.shape[0]), device=leaf.device)
    return leaf.index_select(0, indices).coalesce()
