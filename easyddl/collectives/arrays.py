"""Collectives on arrays and tensors. The result is a new array of the type of the argument."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import get_args

import numpy as np

from easyddl import backends
from easyddl.collectives.types import ArrayT, Op
from easyddl.runtime import context, validators, world

OPS = get_args(Op)
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8")


class _Argument:
    """An array argument, with the type of the user's object.

    Attributes:
        original: The user's object.
        backend: The active backend if the object is one of its tensors, else `None`.
        array: NumPy array. The elements.
    """

    def __init__(self, x):
        self.original = x
        self.backend = backends.backend_of(x)
        if self.backend is not None:
            self.array = self.backend.to_numpy(x)
        elif isinstance(x, np.ndarray | np.generic | numbers.Number):
            self.array = np.asarray(x)
        else:
            raise TypeError(
                "`x` must be a NumPy array, a number, or a tensor of the active Keras backend "
                f"({backends.name()}). For any other object use `broadcast_object` or "
                f"`allgather_object`. Received: x of type {type(x).__name__}"
            )
        if not self.array.dtype.isnative:  # for example from a file in network byte order
            self.array = self.array.astype(self.array.dtype.newbyteorder("="))
        if self.array.dtype.hasobject or self.array.dtype.kind in "USmM":
            raise TypeError(
                "`x` must hold numbers; for other objects use `broadcast_object` or "
                f"`allgather_object`. Received: x with dtype {self.array.dtype}"
            )

    @property
    def dtype(self):
        return self.array.dtype.name

    def like(self, array):
        """A result, converted from a NumPy array to the type of the user's object."""
        if self.backend is not None:
            return self.backend.from_numpy(array, self.original)
        if isinstance(self.original, np.ndarray) or array.ndim > 0:
            return array
        return array[()] if isinstance(self.original, np.generic) else array.item()


def as_bytes(array):
    """The elements of a contiguous array as a flat view of bytes."""
    return array.reshape(-1).view(np.uint8)


def contiguous(array):
    """The array itself if it is contiguous and aligned, else a copy that is."""
    # np.ascontiguousarray would turn a 0-d array into a 1-d array.
    return np.require(array, requirements=["C", "A"])


def plain(value):
    """Converts a NumPy number or string to a Python object, which prints alike on all ranks."""
    return value.item() if isinstance(value, np.generic) else value


def _check_op(dtype, op):
    if op not in OPS:
        raise ValueError(f"`op` must be one of {OPS}. Received: op={op!r}")
    if dtype not in (*_FLOATS, *_INTEGERS, "bool"):
        raise TypeError(
            f"Cannot compute with this dtype: cast `x` to one of {(*_FLOATS, *_INTEGERS)} "
            f"first. Received: x with dtype {dtype}"
        )
    if op == "mean" and dtype not in _FLOATS:
        raise TypeError(
            'op="mean" needs a floating-point dtype, because integers have no integer mean. Cast '
            f'`x`, or use op="sum" and divide. Received: x with dtype {dtype}'
        )
    if dtype == "bool" and op == "sum":
        raise TypeError(
            'op="sum" is not defined for bool: cast `x` to an integer to count, or use '
            'op="max" (any) or op="min" (all).'
        )


def check_root(root_rank):
    """Raises an error unless `root_rank` is the number of a rank."""
    if not validators.is_integer(root_rank):
        raise TypeError(f"`root_rank` must be an integer. Received: root_rank={root_rank!r}")
    if not 0 <= root_rank < world.size():
        raise ValueError(
            f"`root_rank` must be a rank, from 0 to {world.size() - 1}. "
            f"Received: root_rank={root_rank}"
        )


def collective(name, x, prepare, run, **arguments):
    """Runs a collective, so that a bad argument on any rank is an error on all ranks.

    If a rank with a bad argument raised at once, the other ranks would wait for it. So it first
    tells the other ranks what is wrong. If the arguments of all ranks have the same error, each
    rank raises it. Otherwise the error names what each rank called.

    Args:
        name: String. The function that the user called.
        x: The user's array argument.
        prepare: Function of an `_Argument`. It checks the argument and returns a description that
            is equal on all ranks if the arguments match.
        run: Function of the `_Argument` and of a string, the description of the call. It runs the
            collective and returns its result.
        **arguments: The user's other arguments, which must be equal on all ranks.
    """
    with world.taking_part(f"{name}()"):
        context.require_all_ranks(f"{name}()")
        shown = ", ".join(f"{key}={plain(value)!r}" for key, value in arguments.items())
        try:
            argument = _Argument(x)
            what = ", ".join(part for part in (prepare(argument), shown) if part)
        except Exception as problem:
            world.agree(f"{name}({shown}) with a bad argument [{problem}]")
            raise
        return run(argument, f"{name}({what})")


def _whole(argument):
    """Describes an array whose shape must be equal on all ranks."""
    return f"x: {argument.dtype} of shape {argument.array.shape}"


def _rows(argument):
    """Describes an array whose first dimension may differ by rank."""
    if argument.array.ndim == 0:
        raise ValueError(
            "`x` must have at least one dimension, whose rows go to or come from the ranks. Pass "
            "`x[None]` or `np.atleast_1d(x)`. Received: a 0-d array"
        )
    shape = ", ".join(["any", *map(str, argument.array.shape[1:])])
    return f"x: {argument.dtype} of shape ({shape})"


def reduce_arrays(arrays, dtype, op, text):
    """The reduction of a list of arrays over all ranks, as new arrays.

    Args:
        arrays: List of NumPy arrays of one dtype.
        dtype: String. The name of that dtype.
        op: One of `OPS`.
        text: String. The description of the call, which must be equal on all ranks.
    """
    with world.failing_alike(text):
        arrays = [contiguous(array) for array in arrays]
        results = [np.empty_like(array) for array in arrays]
    world.engine().communicator.allreduce(
        [as_bytes(array) for array in arrays],
        [as_bytes(result) for result in results],
        dtype,
        op,
        world.fingerprint(text),
    )
    return results


def broadcast_arrays(arrays, root_rank, text):
    """The root's arrays, as new arrays on all ranks.

    Args:
        arrays: List of NumPy arrays, of the same shapes and dtypes on all ranks.
        root_rank: Integer. The root.
        text: String. The description of the call, which must be equal on all ranks.
    """
    with world.failing_alike(text):
        arrays = [contiguous(array) for array in arrays]
        results = [array.copy() for array in arrays]
    world.engine().communicator.broadcast(
        [as_bytes(array) for array in arrays],
        [as_bytes(result) for result in results],
        root_rank,
        world.fingerprint(text),
    )
    return results


def row_allocator(shape, dtype):
    """Allocates the array for the rows of all ranks when their number is known.

    Args:
        shape: Tuple. The shape of a row.
        dtype: NumPy dtype.

    Returns:
        Pair of an empty list and a function. The engine calls the function with the number of rows
        of each rank. The function allocates the array, appends it to the list, and returns its
        bytes.
    """
    allocated = []

    def allocate(counts):
        allocated.append(np.empty((sum(counts), *shape), dtype))
        return as_bytes(allocated[0])

    return allocated, allocate


def allreduce(x: ArrayT, op: Op = "mean") -> ArrayT:
    """Reduces an array over all ranks, between steps: see `easyddl.allreduce`.

    Args:
        x: NumPy array, number, or tensor with values.
        op: One of `OPS`.
    """

    def prepare(argument):
        _check_op(argument.dtype, op)
        return _whole(argument)

    def run(argument, text):
        (result,) = reduce_arrays([argument.array], argument.dtype, op, text)
        return argument.like(result)

    return collective("allreduce", x, prepare, run, op=op)


def broadcast(x: ArrayT, root_rank: int = 0) -> ArrayT:
    """Copies the array of one rank to all ranks.

    Args:
        x: NumPy array, number, or tensor, of the same shape and dtype on all ranks.
        root_rank: Integer. The rank whose array is copied.

    Returns:
        An array, number or tensor, as `x` is, with the elements of the root.

    Raises:
        TypeError, ValueError: If an argument is not as described.
        RuntimeError: On all ranks, if they pass different shapes, dtypes or roots.

    Example:
    ```python
    start = ddl.broadcast(np.array(time.time()))  # rank 0's clock
    ```
    """

    def prepare(argument):
        check_root(root_rank)
        return _whole(argument)

    def run(argument, text):
        (result,) = broadcast_arrays([argument.array], root_rank, text)
        return argument.like(result)

    return collective("broadcast", x, prepare, run, root_rank=root_rank)


def _row_bytes(array):
    """The bytes of one row."""
    return math.prod(array.shape[1:]) * array.dtype.itemsize


def _exchange_rows(argument, text, method, counts):
    """The rows that all ranks send to this rank. The collective itself tells their number.

    Args:
        argument: `_Argument`.
        text: String. The description of the call, which must be equal on all ranks.
        method: Method of the communicator that runs the collective.
        counts: The number of rows that this rank sends, in the form that the method takes.
    """
    with world.failing_alike(text):
        array = contiguous(argument.array)
        rows = as_bytes(array)
    result, allocate = row_allocator(array.shape[1:], array.dtype)
    method(rows, counts, _row_bytes(array), world.fingerprint(text), allocate)
    return argument.like(result[0])


def allgather(x: ArrayT) -> ArrayT:
    """Concatenates the arrays of all ranks along the first dimension.

    Args:
        x: NumPy array or tensor with at least one dimension. The first dimension may differ between
            ranks; the other dimensions and the dtype must be equal.

    Returns:
        An array or tensor of shape `(n_0 + n_1 + ..., *x.shape[1:])`, in the order of the
        ranks. Equal on all ranks.

    Raises:
        TypeError, ValueError: If `x` is not as described.
        RuntimeError: On all ranks, if they pass different dtypes or other dimensions.

    Example:
    ```python
    predictions = ddl.allgather(model.predict(x_part))
    ```
    """

    def run(argument, text):
        all_gather = world.engine().communicator.all_gather
        return _exchange_rows(argument, text, all_gather, argument.array.shape[0])

    return collective("allgather", x, _rows, run)


def reduce_scatter(x: ArrayT, op: Op = "sum") -> ArrayT:
    """Reduces an array over all ranks, and gives each rank one part of the result.

    Args:
        x: NumPy array or tensor, of the same shape and dtype on all ranks, whose first
            dimension is a multiple of the number of ranks. `allreduce` lists the dtypes.
        op: One of `"mean"`, `"sum"`, `"min"`, `"max"`, `"prod"`.

    Returns:
        On rank `r`, rows `r * n` to `(r + 1) * n` of the result of `allreduce(x, op)`, up to
        rounding, with `n = x.shape[0] // size()`.

    Raises:
        TypeError, ValueError: If an argument is not as described.
        RuntimeError: On all ranks, if they pass different shapes, dtypes or ops.
    """

    def prepare(argument):
        _rows(argument)
        _check_op(argument.dtype, op)
        _check_divides(argument.array, "`reduce_scatter` gives each rank an equal part")
        return _whole(argument)

    def run(argument, text):
        with world.failing_alike(text):
            array = contiguous(argument.array)
            result = np.empty((array.shape[0] // world.size(), *array.shape[1:]), array.dtype)
        world.engine().communicator.reduce_scatter(
            as_bytes(array),
            as_bytes(result),
            result.size,
            world.size(),
            argument.dtype,
            op,
            world.fingerprint(text),
        )
        return argument.like(result)

    return collective("reduce_scatter", x, prepare, run, op=op)


def _check_divides(array, why):
    """Raises an error unless the rows can be split evenly over the ranks.

    Args:
        array: NumPy array.
        why: String. The reason, with which the error message begins.
    """
    if array.shape[0] % world.size() != 0:
        raise ValueError(
            f"{why}: the first dimension of `x` must be a multiple of the number of ranks, "
            f"{world.size()}. Pad or cut it. Received: x of shape {array.shape}"
        )


def _splits(array, splits):
    """The number of rows to send to each rank, as a list.

    Args:
        array: NumPy array. The rows.
        splits: The user's argument.
    """
    if splits is None:
        _check_divides(array, "Without `splits`, `alltoall` sends each rank an equal part")
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


def alltoall(x: ArrayT, splits: Sequence[int] | None = None) -> ArrayT:
    """Sends one part of the rows to each rank, and concatenates the parts that this rank receives.

    Args:
        x: NumPy array or tensor with at least one dimension. The first dimension may differ between
            ranks; the other dimensions and the dtype must be equal.
        splits: Sequence of `size()` integers: the first `splits[0]` rows go to rank 0, the
            next `splits[1]` to rank 1, and so on. `None` sends an equal part to each rank.

    Returns:
        The rows that all ranks sent to this rank, in the order of the ranks.

    Raises:
        TypeError, ValueError: If an argument is not as described.
        RuntimeError: On all ranks, if they pass different dtypes or other dimensions.
    """
    sends = []

    def prepare(argument):
        described = _rows(argument)
        sends.extend(_splits(argument.array, splits))
        return described

    def run(argument, text):
        return _exchange_rows(argument, text, world.engine().communicator.all_to_all, sends)

    return collective("alltoall", x, prepare, run)
