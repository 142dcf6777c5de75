"""Folders for what tests build, which the workers of a run and later runs share."""

import contextlib
import fcntl
import hashlib
import pathlib

BUILD = pathlib.Path(__file__).parents[2] / "build"


@contextlib.contextmanager
def folder(name, *inputs):
    """Gives a folder below `build/` to one process at a time, which builds in it what is missing.

    Args:
        name: String.
        *inputs: Anything with a text. What a build must have in common with an earlier one to go
            on from it.
    """
    key = hashlib.sha256(repr(inputs).encode()).hexdigest()[:12]
    path = BUILD / "tests" / f"{name}-{key}"
    path.mkdir(parents=True, exist_ok=True)
    with locked(path.with_suffix(".lock")):
        yield path


@contextlib.contextmanager
def locked(path):
    """Holds a lock file. Other processes that ask for it wait."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
