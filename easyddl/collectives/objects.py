"""Collectives on Python objects, and taking turns."""

import contextlib
import pickle

import numpy as np

from easyddl.collectives import arrays
from easyddl.runtime import context, world

_NOTHING = np.empty(0, np.uint8)


def _pickled(name, obj):
    """The object's bytes; an error on all ranks if it has none on this one."""
    context.require_all_ranks(name)
    try:
        return np.frombuffer(pickle.dumps(obj), np.uint8)
    except Exception as problem:
        world.agree(f"{name} with an object that cannot be pickled [{problem}]")
        raise TypeError(
            f"`obj` must be picklable, as it travels to other processes: {problem}. "
            f"Received: obj of type {type(obj).__name__}"
        ) from problem


def allgather_object(obj):
    """Gathers one object of each rank.

    Args:
        obj: Any object that can be pickled; it may differ by rank.

    Returns:
        List of all ranks' objects, in the order of the ranks, equal on all.

    Raises:
        TypeError: If no rank's `obj` can be pickled.
        RuntimeError: On all ranks, if only some can.

    Example:
    ```python
    hosts = ddl.allgather_object(socket.gethostname())
    ```
    """
    text, ends = "allgather_object(obj)", []
    with world.taking_part(text):
        data = _pickled(text, obj)
        joined, allocate = arrays.gathering((), np.uint8)

        def cut(counts):
            ends.extend(np.cumsum(counts)[:-1])
            return allocate(counts)

        signature = world.fingerprint(text)
        world.engine().communicator.all_gather(data, data.size, 1, signature, cut)
    return [pickle.loads(part.tobytes()) for part in np.split(joined[0], ends)]


def broadcast_object(obj, root_rank=0):
    """Gives all ranks one rank's object.

    Args:
        obj: Any object that can be pickled. Only the root's counts.
        root_rank: Integer. The rank whose object all get.

    Returns:
        The root's object; a copy of it on the other ranks.

    Raises:
        ValueError: If `root_rank` is no rank.
        RuntimeError: On all ranks, if they disagree in the root, or the root's `obj` cannot be
            pickled.
    """
    with world.taking_part("broadcast_object()"):
        context.require_all_ranks("broadcast_object()")
        text = f"broadcast_object(root_rank={arrays.plain(root_rank)!r})"
        try:
            arrays.check_root(root_rank)
        except (TypeError, ValueError) as problem:
            world.agree(f"{text} with a bad argument [{problem}]")
            raise
        is_root = world.rank() == root_rank
        data = _pickled(text, obj) if is_root else _NOTHING
        received, allocate = arrays.gathering((), np.uint8)
        signature = world.fingerprint(text)
        world.engine().communicator.broadcast_unknown(data, root_rank, signature, allocate)
    return obj if is_root else pickle.loads(received[0].tobytes())


@contextlib.contextmanager
def root_first():
    """Lets the root go first; the other ranks follow when it is done.

    For downloads and caches, which one process should fill and all may read. The body must
    not call collectives, since the ranks are not in it together.

    Raises:
        RuntimeError: On the other ranks, if the root's body raised.

    Example:
    ```python
    with ddl.root_first():
        (x_train, y_train), _ = keras.datasets.mnist.load_data()
    ```
    """
    if not world.is_root():
        _hear_of_root(None)
        yield
        return
    try:
        with world.activity("the body of root_first()"):
            yield
    except BaseException as problem:
        _hear_of_root(f"{type(problem).__name__}: {problem}")
        raise
    _hear_of_root(None)


def from_root(function, text):
    """What a function returns on the root, on all ranks; or the error that it raises there.

    The other ranks wait for it, however long it takes.

    Args:
        function: Function without arguments, which must not call collectives. Called on the
            root alone.
        text: What it does, in words, for ranks that wait.

    Returns:
        What it has returned, which must be picklable.

    Raises:
        Exception: On all ranks, what it has raised on the root.
    """
    result, problem = None, None
    if world.is_root():
        try:
            with world.activity(text):
                result = function()
        except Exception as error:
            problem = error
    portable = None if problem is None else _portable(problem)
    result, heard = broadcast_object((result, portable))
    if problem is not None:
        raise problem
    if heard is not None:
        raise heard from RuntimeError(f"Rank 0 met it: {text}")
    return result


def _portable(problem):
    """An exception, or one that says the same if it cannot travel."""
    try:
        copy = pickle.loads(pickle.dumps(problem))
        if type(copy) is type(problem) and str(copy) == str(problem):
            return problem
    except Exception:
        pass  # it has attributes, or a constructor, that pickle cannot serve
    return RuntimeError(f"{type(problem).__name__}: {problem}")


def _hear_of_root(problem):
    problem = broadcast_object(problem)
    if problem is not None and not world.is_root():
        raise RuntimeError(f"Rank 0, which went first in `root_first`, failed: {problem}")
