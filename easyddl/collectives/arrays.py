"""Collectives on arrays and tensors. The result is a new array of the type of the argument."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from easyddl.collectives import arguments
from easyddl.collectives.arguments import ArrayT, Op
from easyddl.runtime import world
from easyddl.runtime.byte_collectives import row_allocator


def as_bytes(array):
    """Returns the elements of a contiguous array as a flat view of bytes."""
    return array.reshape(-1).view(np.uint8)


def contiguous(array):
    """Returns the array itself if it is contiguous and aligned, else a copy that is."""
    # np.ascontiguousarray would turn a 0-d array into a 1-d array.
    return np.require(array, requirements=["C", "A"])


def reduce_arrays(arrays, dtype, op, text):
    """Returns the reduction of a list of arrays over all ranks, as new arrays.

    Args:
        arrays: List of NumPy arrays of one dtype.
        dtype: String. The name of that dtype.
        op: One of `arguments.OPS`.
        text: String. The description of the call, which must be equal on all ranks.
    """
    with world.failing_alike(text):
        arrays = [contiguous(array) for array in arrays]
        results = [np.empty_like(array) for array in arrays]
    world.communicator().allreduce(
        [as_bytes(array) for array in arrays],
        [as_bytes(result) for result in results],
        dtype,
        op,
        world.fingerprint(text),
    )
    return results


def broadcast_arrays(arrays, root_rank, text):
    """Returns the root's arrays: new arrays, or on the root the arrays themselves.

    Args:
        arrays: List of NumPy arrays, of the same shapes and dtypes on all ranks.
        root_rank: Integer. The root.
        text: String. The description of the call, which must be equal on all ranks.
    """
    with world.failing_alike(text):
        arrays = [contiguous(array) for array in arrays]
        results = [np.empty_like(array) for array in arrays]  # on the root nothing is written
    world.communicator().broadcast(
        [as_bytes(array) for array in arrays],
        [as_bytes(result) for result in results],
        root_rank,
        world.fingerprint(text),
    )
    return arrays if world.rank() == root_rank else results


@world.on_all_ranks("allreduce()")
def allreduce(x: ArrayT, op: Op = "mean") -> ArrayT:
    """Reduces an array over all ranks, between steps: see `easyddl.allreduce`.

    Args:
        x: NumPy array, number, or tensor with values.
        op: One of `arguments.OPS`.
    """

    def prepare(argument):
        arguments.check_op(argument.dtype, op)
        return arguments.describe_whole(argument)

    def run(argument, text):
        (result,) = reduce_arrays([argument.array], argument.dtype, op, text)
        return argument.like(result)

    return arguments.collective("allreduce", x, prepare, run, op=op)


@world.on_all_ranks("broadcast()")
def broadcast(x: ArrayT, root_rank: int = 0) -> ArrayT:
    """Copies the array of one rank to all ranks.

    Args:
        x: NumPy array, number, or tensor, of the same shape and dtype on all ranks.
        root_rank: Integer. The rank whose array is copied.

    Returns:
        Array, number or tensor of the type of `x`, with the elements of the root.

    Raises:
        TypeError: If `x` is not an array, or `root_rank` not an integer.
        ValueError: If `root_rank` is not the number of a rank.
        RuntimeError: On all ranks, if they pass different shapes, dtypes or roots.

    Example:
    ```python
    start = ddl.broadcast(np.array(time.time()))  # rank 0's clock
    ```
    """

    def prepare(argument):
        arguments.check_root(root_rank)
        return arguments.describe_whole(argument)

    def run(argument, text):
        (result,) = broadcast_arrays([argument.array], root_rank, text)
        return argument.like(result.copy() if world.rank() == root_rank else result)

    return arguments.collective("broadcast", x, prepare, run, root_rank=root_rank)


def _collect_rows(argument, text, method, counts):
    """Sends rows, and returns the rows that all ranks send to this rank.

    Args:
        argument: `ArrayArgument`.
        text: String. The description of the call, which must be equal on all ranks.
        method: Method of the communicator that runs the collective.
        counts: The number of rows that this rank sends, in the form that the method takes.
    """
    with world.failing_alike(text):
        array = contiguous(argument.array)
        rows = as_bytes(array)
    allocated, allocate = row_allocator(array.shape[1:], array.dtype)
    row_bytes = math.prod(array.shape[1:]) * array.dtype.itemsize
    method(rows, counts, row_bytes, world.fingerprint(text), allocate)
    return argument.like(allocated[0])


@world.on_all_ranks("allgather()")
def allgather(x: ArrayT) -> ArrayT:
    """Concatenates the arrays of all ranks along the first dimension.

    Args:
        x: NumPy array or tensor with at least one dimension. The first dimension may differ between
            ranks; the other dimensions and the dtype must be equal.

    Returns:
        Array or tensor of shape `(n_0 + n_1 + ..., *x.shape[1:])`, in the order of the ranks, where
        `n_r` is the first dimension on rank `r`. Equal on all ranks.

    Raises:
        TypeError: If `x` is not an array of numbers.
        ValueError: If `x` has no dimension.
        RuntimeError: On all ranks, if the dtypes or the other dimensions differ.

    Example:
    ```python
    predictions = ddl.allgather(model.predict(x_part))
    ```
    """

    def run(argument, text):
        all_gather = world.communicator().all_gather
        return _collect_rows(argument, text, all_gather, argument.array.shape[0])

    return arguments.collective("allgather", x, arguments.describe_rows, run)


@world.on_all_ranks("reduce_scatter()")
def reduce_scatter(x: ArrayT, op: Op = "sum") -> ArrayT:
    """Reduces an array over all ranks, and returns a different part of the result on each rank.

    Args:
        x: NumPy array or tensor, of the same shape and dtype on all ranks, whose first
            dimension is a multiple of the number of ranks. `allreduce` lists the dtypes.
        op: One of `"mean"`, `"sum"`, `"min"`, `"max"`, `"prod"`.

    Returns:
        Array or tensor of shape `(n, *x.shape[1:])` with `n = x.shape[0] // size()`: on rank `r`
        the rows `r * n` to `(r + 1) * n` of `allreduce(x, op)`, up to rounding.

    Raises:
        TypeError: If `x` is not an array of a supported dtype.
        ValueError: If `op` is unknown, or the first dimension is not a multiple of the number of
            ranks.
        RuntimeError: On all ranks, if they pass different shapes, dtypes or ops.

    Example:
    ```python
    mine = ddl.reduce_scatter(np.ones((ddl.size(), 3)))  # k, in shape (1, 3), on k ranks
    ```
    """

    def prepare(argument):
        arguments.describe_rows(argument)
        arguments.check_op(argument.dtype, op)
        arguments.check_divides(argument.array, "`reduce_scatter` gives each rank an equal part")
        return arguments.describe_whole(argument)

    def run(argument, text):
        with world.failing_alike(text):
            array = contiguous(argument.array)
            result = np.empty((array.shape[0] // world.size(), *array.shape[1:]), array.dtype)
        world.communicator().reduce_scatter(
            as_bytes(array),
            as_bytes(result),
            result.size,
            world.size(),
            argument.dtype,
            op,
            world.fingerprint(text),
        )
        return argument.like(result)

    return arguments.collective("reduce_scatter", x, prepare, run, op=op)


def _splits(array, splits):
    """Returns the number of rows to send to each rank, as a list.

    Args:
        array: NumPy array. The rows.
        splits: The user's argument.
    """
    if splits is None:
        arguments.check_divides(array, "Without `splits`, `alltoall` sends each rank an equal part")
        return [array.shape[0] // world.size()] * world.size()
    try:
        rows = np.asarray(splits)
    except ValueError:  # lists of unequal lengths
        rows = np.empty(0)
    if rows.shape != (world.size(),) or rows.dtype.kind not in "iu":
        raise ValueError(
            f"`splits` must hold {world.size()} integers, one for each rank. Received: {splits!r}"
        )
    if (rows < 0).any() or rows.sum() != array.shape[0]:
        raise ValueError(
            "`splits` must be non-negative and add up to the first dimension of `x`, "
            f"{array.shape[0]}. Received: {splits!r}"
        )
    return rows.tolist()


@world.on_all_ranks("alltoall()")
def alltoall(x: ArrayT, splits: Sequence[int] | None = None) -> ArrayT:
    """Sends one part of the rows to each rank, and concatenates the parts that this rank receives.

    Args:
        x: NumPy array or tensor with at least one dimension. The first dimension may differ between
            ranks; the other dimensions and the dtype must be equal.
        splits: Sequence of `size()` integers: the first `splits[0]` rows go to rank 0, the
            next `splits[1]` to rank 1, and so on. `None` sends an equal part to each rank.

    Returns:
        Array or tensor: the rows that all ranks sent to this rank, in the order of the ranks.

    Raises:
        TypeError: If `x` is not an array of numbers.
        ValueError: If `x` has no dimension, or `splits` does not add up to its first dimension.
        RuntimeError: On all ranks, if the dtypes or the other dimensions differ.

    Example:
    ```python
    # Rank r gets row r of each rank.
    columns = ddl.alltoall(np.arange(ddl.size()))
    ```
    """
    sends = []

    def prepare(argument):
        described = arguments.describe_rows(argument)
        sends.extend(_splits(argument.array, splits))
        return described

    def run(argument, text):
        return _collect_rows(argument, text, world.communicator().all_to_all, sends)

    return arguments.collective("alltoall", x, prepare, run)
