"""The arguments of collectives on arrays: their checks, and descriptions that ranks compare."""

from __future__ import annotations

import numbers
import re
from typing import Literal, TypeVar, get_args

import numpy as np

from easyddl import backends
from easyddl.collectives.passed_numbers import passed
from easyddl.runtime import validators, world
from easyddl.steps import context

# A NumPy array, a number, or a tensor of the active Keras backend. A collective returns an object
# of the type of its argument.
ArrayT = TypeVar("ArrayT")

Op = Literal["mean", "sum", "min", "max", "prod"]
OPS = get_args(Op)

BAD_ARGUMENT = " with a bad argument"  # after a collective, where it has failed

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8")


class ArrayArgument:
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
        elif isinstance(x, np.ma.MaskedArray):
            raise TypeError(
                "`x` must have all its values. Fill in those that are masked, as in `x.filled(0)`. "
                f"Received: x of type {type(x).__name__}"
            )
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
        """Returns a result, converted from a NumPy array to the type of the user's object."""
        if self.backend is not None:
            return self.backend.from_numpy(array, self.original)
        if isinstance(self.original, np.ndarray) or array.ndim > 0:
            return array
        return array[()] if isinstance(self.original, np.generic) else array.item()


def to_python(value):
    """Converts a NumPy scalar to a Python object, whose text is equal on all ranks."""
    return value.item() if isinstance(value, np.generic) else value


def comparable_name(name):
    """Returns the name of a layer or a variable without the numbers of automatic names.

    Keras numbers what a process makes, as in `dense_1/kernel`. A rank that has made more models
    than the others has other numbers.

    Args:
        name: String.
    """
    return re.sub(r"_\d+(?=[_/.]|$)", "", name)


def check_op(dtype, op):
    """Raises an error unless a reduction is defined for a dtype.

    Args:
        dtype: String. The name of the dtype.
        op: The user's argument.
    """
    validators.one_of("op", op, OPS)
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
    """Runs a collective. A bad argument on any rank raises an error on all ranks.

    If a rank with a bad argument raised at once, the other ranks would wait for it. So it first
    sends the error to the other ranks: see `world.failing_alike`. Call this in a function that
    `world.on_all_ranks` decorates.

    Args:
        name: String. The function that the user called.
        x: The user's array argument.
        prepare: Function of an `ArrayArgument`. It checks the argument and returns a description
            that is equal on all ranks if the arguments match.
        run: Function of the `ArrayArgument` and of a string, the description of the call. It runs
            the collective and returns its result.
        **arguments: The user's other arguments, which must be equal on all ranks.
    """
    context.require_all_ranks(f"{name}()")
    shown = ", ".join(f"{key}={to_python(value)!r}" for key, value in arguments.items())
    with world.failing_alike(f"{name}({shown})", BAD_ARGUMENT):
        argument = ArrayArgument(x)
        what = ", ".join(part for part in (prepare(argument), shown) if part)
    if name != "broadcast":
        passed.add(argument.array.size)
    return run(argument, f"{name}({what})")


def describe_whole(argument):
    """Describes an array whose shape must be equal on all ranks."""
    return f"x: {argument.dtype} of shape {argument.array.shape}"


def describe_rows(argument):
    """Describes an array whose first dimension may differ by rank."""
    if argument.array.ndim == 0:
        raise ValueError(
            "`x` must have at least one dimension, because the ranks send and receive its rows. "
            "Pass `x[None]` or `np.atleast_1d(x)`. Received: a 0-d array"
        )
    shape = ", ".join(["any", *map(str, argument.array.shape[1:])])
    return f"x: {argument.dtype} of shape ({shape})"


def check_divides(array, why):
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
