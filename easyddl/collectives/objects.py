"""Collectives on Python objects, and `root_first`."""

from __future__ import annotations

import contextlib
import pickle
from typing import TypeVar

import numpy as np

from easyddl.collectives import arguments
from easyddl.collectives.passed_numbers import passed
from easyddl.compat import user_code
from easyddl.runtime import byte_collectives, settled_errors, world
from easyddl.steps import context

ObjectT = TypeVar("ObjectT")  # any object that can be pickled

_NOTHING = np.empty(0, np.uint8)  # allocated beforehand, because that may fail on one rank alone


def _pickled(name, obj):
    """Pickles an object. If this fails on any rank, all ranks raise an error.

    Args:
        name: String. The collective.
        obj: The user's object.
    """
    context.require_all_ranks(name)
    try:
        return np.frombuffer(pickle.dumps(obj), np.uint8)
    except (pickle.PickleError, *user_code.ERRORS) as problem:
        if user_code.is_of_handler(problem):
            raise
        world.agree(f"{name} with an object that cannot be pickled [{problem}]")
        raise settled_errors.settled(
            TypeError(
                f"`obj` must be picklable, because it is sent to other processes: {problem}. "
                f"Received: obj of type {type(obj).__name__}"
            )
        ) from problem


@world.on_all_ranks("allgather_object(obj)")
def allgather_object(obj: ObjectT) -> list[ObjectT]:
    """Gathers one object from each rank.

    Args:
        obj: Any object that can be pickled. It may differ between ranks.

    Returns:
        List of the objects of all ranks, in the order of the ranks. Equal on all ranks.

    Raises:
        TypeError: If no rank's `obj` can be pickled.
        RuntimeError: On all ranks, if only some objects can be pickled.

    Example:
    ```python
    hosts = ddl.allgather_object(socket.gethostname())
    ```
    """
    text = "allgather_object(obj)"
    mine = _pickled(text, obj)
    passed.add(mine.size // 2)  # a number has at least two bytes
    parts = byte_collectives.gather(mine, text)
    return [pickle.loads(part.tobytes()) for part in parts]


@world.on_all_ranks("broadcast_object()")
def broadcast_object(obj: ObjectT, root_rank: int = 0) -> ObjectT:
    """Copies the object of one rank to all ranks.

    Args:
        obj: Any object that can be pickled. The objects of the other ranks are ignored.
        root_rank: Integer. The rank whose object is copied.

    Returns:
        The object itself on the root, and a copy of it on the other ranks.

    Raises:
        TypeError: If `root_rank` is not an integer.
        ValueError: If `root_rank` is not the number of a rank.
        RuntimeError: On all ranks, if they pass different roots, or if the root's `obj` cannot be
            pickled.

    Example:
    ```python
    settings = ddl.broadcast_object(read_settings() if ddl.is_root() else None)
    ```
    """
    context.require_all_ranks("broadcast_object()")
    text = f"broadcast_object(root_rank={arguments.to_python(root_rank)!r})"
    with world.failing_alike(text, arguments.BAD_ARGUMENT):
        arguments.check_root(root_rank)
    is_root = world.rank() == root_rank
    data = _pickled(text, obj) if is_root else _NOTHING
    received = byte_collectives.broadcast(data, root_rank, text)
    return obj if is_root else pickle.loads(received.tobytes())


class _RootFirst(contextlib.ContextDecorator):
    """The context manager of `root_first`. Errors of the body are not errors of a collective."""

    @world.on_all_ranks("root_first()", of_script=True)
    def __enter__(self):
        self._activity = world.activity("the body of root_first()")
        if world.is_root():
            self._activity.__enter__()
        else:
            _broadcast_problem(None)

    @world.on_all_ranks("root_first()", of_script=True)
    def __exit__(self, kind, error, traceback):
        if world.is_root():
            self._activity.__exit__(None, None, None)
            _broadcast_problem(None if error is None else settled_errors.describe(error))


@world.on_all_ranks("root_first()", of_script=True)
def root_first() -> contextlib.AbstractContextManager[None]:
    """Runs the body on the root first, and then on the other ranks.

    Use it for downloads and caches, which one process should write and all may read. The body must
    not call collectives, because the ranks do not run it at the same time.

    Raises:
        RuntimeError: On the other ranks, if the body raised an error on the root.

    Example:
    ```python
    with ddl.root_first():
        (x_train, y_train), _ = keras.datasets.mnist.load_data()
    ```
    """
    return _RootFirst()


@world.on_all_ranks("a call on rank 0")
def from_root(function, text):
    """Calls a function on the root, and returns its result on all ranks.

    The other ranks wait without a deadline.

    Args:
        function: Function without arguments, which must not call collectives.
        text: String. What the function does, which waiting ranks print.

    Returns:
        The result of the function, which must be picklable.

    Raises:
        Exception: On all ranks, the exception that the function raised on the root.
    """
    result, problem = None, None
    if world.is_root():
        try:
            with world.activity(text):
                result = function()
        except Exception as error:
            problem = error
    portable = None if problem is None else _portable(problem)
    result, received = broadcast_object((result, portable))
    if problem is not None:
        raise settled_errors.settled(problem)
    if received is not None:
        raise settled_errors.settled(received) from RuntimeError(
            f"Rank 0 raised this error: {text}"
        )
    return result


def _portable(problem):
    """Returns an exception, or a `RuntimeError` with its message if it cannot be pickled."""
    # pickle may not support its attributes or its constructor.
    with user_code.suppress(pickle.PickleError):
        copy = pickle.loads(pickle.dumps(problem))
        if type(copy) is type(problem) and str(copy) == str(problem):
            return problem
    return RuntimeError(f"{type(problem).__name__}: {problem}")


def _broadcast_problem(problem):
    """Broadcasts how the body ended on the root. The other ranks raise an error if it failed.

    Args:
        problem: String, or `None` if the body succeeded. Only the root's argument is used.
    """
    with context.Call("root_first()"):
        problem = broadcast_object(problem)
    if problem is not None and not world.is_root():
        raise settled_errors.settled(
            RuntimeError(f"Rank 0, which runs first in `root_first`, failed: {problem}")
        )
