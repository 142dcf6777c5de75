"""Collectives on arrays and tensors: out of place, the same type in and out."""

import math
import numbers

import numpy as np

from easyddl import backends
from easyddl.runtime import context, validators, world

OPS = ("mean", "sum", "min", "max", "prod")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8")


class _Argument:
    """An array argument: its elements, and how to give back a result of its kind."""

    def __init__(self, x):
        self.kind = x
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
        if not self.array.dtype.isnative:  # from a file in network order, for example
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
        """The result `array` as what the caller passed."""
        if self.backend is not None:
            return self.backend.from_numpy(array, self.kind)
        if isinstance(self.kind, np.ndarray):
            return array
        if array.ndim > 0:
            return array
        return array[()] if isinstance(self.kind, np.generic) else array.item()


def as_bytes(array):
    """The elements of a contiguous array as a flat view of bytes."""
    return array.reshape(-1).view(np.uint8)


def contiguous(array):
    """The array itself where it lies in one aligned piece, else a copy that does."""
    # np.ascontiguousarray would turn a 0-d array into a 1-d one.
    return np.require(array, requirements=["C", "A"])


def plain(value):
    """A NumPy number or string as Python's own, which prints alike on all ranks."""
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
            'op="mean" needs a floating-point dtype, since the mean of integers is none. Cast '
            f'`x`, or use op="sum" and divide. Received: x with dtype {dtype}'
        )
    if dtype == "bool" and op == "sum":
        raise TypeError(
            'op="sum" is not defined for bool: cast `x` to an integer to count, or use '
            'op="max" (any) or op="min" (all).'
        )


def check_root(root_rank):
    """Raises an error unless `root_rank` is one."""
    if not validators.is_integer(root_rank):
        raise TypeError(f"`root_rank` must be an integer. Received: root_rank={root_rank!r}")
    if not 0 <= root_rank < world.size():
        raise ValueError(
            f"`root_rank` must be a rank, from 0 to {world.size() - 1}. "
            f"Received: root_rank={root_rank}"
        )


def collective(name, x, prepare, run, **arguments):
    """Runs a collective that every rank takes part in, also one whose input is bad.

    A rank that raised at once would leave the others waiting. It takes part instead, saying
    what is wrong, so that all ranks raise: the same error of their own where all are wrong,
    else one that names who sent what.

    Args:
        name: What the user called.
        x: The user's argument.
        prepare: Function of an `_Argument` that checks it and returns what describes it, for
            all ranks alike.
        run: Function of the `_Argument` and of what it does in words: the collective itself.
        **arguments: The user's other arguments that must agree.
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
    return f"x: {argument.dtype} of shape {argument.array.shape}"


def _rows(argument):
    """Describes an array whose first dimension may differ by rank."""
    if argument.array.ndim == 0:
        raise ValueError(
            "`x` must have at least one dimension, along which ranks' parts are laid. Pass "
            "`x[None]` or `np.atleast_1d(x)`. Received: a 0-d array"
        )
    shape = ", ".join(["any", *map(str, argument.array.shape[1:])])
    return f"x: {argument.dtype} of shape ({shape})"


def reduce_arrays(arrays, dtype, op, text):
    """The reduction of a list of arrays of one dtype over all ranks, as new arrays."""
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
    """The root's arrays on all ranks, as new arrays."""
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


def gathering(shape, dtype):
    """What makes the array for rows of all ranks, and holds it.

    Args:
        shape: Tuple. The shape of a row.
        dtype: NumPy dtype.

    Returns:
        List that will hold the array, and the function that the engine calls when it knows how many
        rows each rank has.
    """
    made = []

    def allocate(counts):
        made.append(np.empty((sum(counts), *shape), dtype))
        return as_bytes(made[0])

    return made, allocate


def allreduce(x, op="mean"):
    """Reduces the values of an array over all ranks: see `easyddl.allreduce`.

    Args:
        x: NumPy array, number, or tensor that has values.
        op: One of `OPS`.
    """

    def prepare(argument):
        _check_op(argument.dtype, op)
        return _whole(argument)

    def run(argument, text):
        (result,) = reduce_arrays([argument.array], argument.dtype, op, text)
        return argument.like(result)

    return collective("allreduce", x, prepare, run, op=op)


def broadcast(x, root_rank=0):
    """Gives all ranks one rank's array.

    Args:
        x: NumPy array, number, or tensor, of the same shape and dtype on all ranks.
        root_rank: Integer. The rank whose elements all get.

    Returns:
        What `x` is, with the root's elements.

    Raises:
        TypeError, ValueError: If an argument is none of these.
        RuntimeError: On all ranks, if they disagree in shape, dtype or root.

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
    return math.prod(array.shape[1:]) * array.dtype.itemsize


def _rows_of_all(argument, text, carry, counts):
    """The rows that come from all ranks, whose number the ranks learn in the collective.

    Args:
        argument: `_Argument`.
        text: String. The collective.
        carry: The channel's method that carries it.
        counts: What it is passed on the rows that this rank sends.
    """
    with world.failing_alike(text):
        array = contiguous(argument.array)
        rows = as_bytes(array)
    result, allocate = gathering(array.shape[1:], array.dtype)
    carry(rows, counts, _row_bytes(array), world.fingerprint(text), allocate)
    return argument.like(result[0])


def allgather(x):
    """Lays all ranks' arrays end to end along the first dimension.

    Args:
        x: NumPy array or tensor with at least one dimension. The first may differ by rank;
            the others and the dtype must agree.

    Returns:
        An array or tensor of shape `(n_0 + n_1 + ..., *x.shape[1:])`, in the order of the
        ranks, equal on all.

    Raises:
        TypeError, ValueError: If `x` is none.
        RuntimeError: On all ranks, if they disagree in dtype or the other dimensions.

    Example:
    ```python
    predictions = ddl.allgather(model.predict(x_part))
    ```
    """

    def run(argument, text):
        channel = world.engine().communicator
        return _rows_of_all(argument, text, channel.all_gather, argument.array.shape[0])

    return collective("allgather", x, _rows, run)


def reduce_scatter(x, op="sum"):
    """Reduces an array over all ranks and leaves each rank its part of the result.

    Args:
        x: NumPy array or tensor, of the same shape and dtype on all ranks, whose first
            dimension is a multiple of the number of ranks. Dtypes as for `allreduce`.
        op: One of `"mean"`, `"sum"`, `"min"`, `"max"`, `"prod"`.

    Returns:
        Rows `r * n` to `(r + 1) * n` of what `allreduce(x, op)` returns, up to rounding, on
        rank `r`, with `n = x.shape[0] // size()`.

    Raises:
        TypeError, ValueError: If an argument is none of these.
        RuntimeError: On all ranks, if they disagree in shape, dtype or op.
    """

    def prepare(argument):
        _rows(argument)
        _check_op(argument.dtype, op)
        _check_divides(argument.array, "`reduce_scatter` deals out equal parts")
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
    if array.shape[0] % world.size() != 0:
        raise ValueError(
            f"{why}: the first dimension of `x` must be a multiple of the number of ranks, "
            f"{world.size()}. Pad or cut it. Received: x of shape {array.shape}"
        )


def _splits(array, splits):
    """The rows for each rank, as a list."""
    if splits is None:
        _check_divides(array, "Without `splits`, `alltoall` deals out equal parts")
        return [array.shape[0] // world.size()] * world.size()
    try:
        rows = np.asarray(splits)
    except ValueError:  # lists of unequal lengths
        rows = np.empty(0)
    if rows.shape != (world.size(),) or rows.dtype.kind not in "iu":
        raise ValueError(
            f"`splits` must hold {world.size()} integers, one a rank. Received: {splits!r}"
        )
    if (rows < 0).any() or rows.sum() != array.shape[0]:
        raise ValueError(
            "`splits` must be non-negative and add up to the first dimension of `x`, "
            f"{array.shape[0]}. Received: {splits!r}"
        )
    return rows.tolist()


def alltoall(x, splits=None):
    """Sends each rank its part of the rows, and lays the parts received end to end.

    Args:
        x: NumPy array or tensor with at least one dimension. The first may differ by rank;
            the others and the dtype must agree.
        splits: Sequence of `size()` integers: the first `splits[0]` rows go to rank 0, the
            next `splits[1]` to rank 1, and so on. `None` deals out equal parts.

    Returns:
        The rows that the ranks sent to this one, in the order of the ranks.

    Raises:
        TypeError, ValueError: If an argument is none of these.
        RuntimeError: On all ranks, if they disagree in dtype or the other dimensions.
    """
    sends = []

    def prepare(argument):
        described = _rows(argument)
        sends.extend(_splits(argument.array, splits))
        return described

    def run(argument, text):
        return _rows_of_all(argument, text, world.engine().communicator.all_to_all, sends)

    return collective("alltoall", x, prepare, run)
