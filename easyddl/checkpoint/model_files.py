"""Makes it safe that several ranks save a model to the same path.

Most scripts end with `model.save("model.keras")`, which all ranks call at once. The ranks' models
are equal, so the file of any rank is correct if it is complete. Therefore, in a job of several
ranks, Keras's functions that write model files write to a temporary path, and the finished file
then replaces the file at the final path: see `atomic_files.write_entries`. The same holds for the
checkpoints that TensorFlow writes itself. Each rank writes, because a script may save on one rank,
or each rank's own model to a path of its own.

Saving is not a collective, because a script may save on one rank only. It does not start MPI.
"""

import functools
import math
import os
import pathlib
import tempfile
import time

import numpy as np

from easyddl import backends
from easyddl.checkpoint import atomic_files
from easyddl.compat import keras_saving, patches
from easyddl.hosts import launched_process
from easyddl.machine import processes

# The bytes that HDF5 and Keras may add to each variable.
_OVERHEAD = 4096


def install():
    """Patches the functions of Keras that write model files. Called when easyddl is imported."""
    for owner, name in keras_saving.writers():
        patches.install(owner, name, _atomic)
    for owner, name in keras_saving.prompts():
        patches.install(owner, name, _without_prompt)
    keras_saving.install_shown_as()


def install_for(backend):
    """Patches the functions with which a framework itself writes checkpoints.

    Args:
        backend: The active `Backend`.
    """
    for owner, name in backend.checkpoint_writers():
        patches.install(owner, name, _atomic_checkpoint)


def size_of(model):
    """Returns the approximate number of bytes of the file of a model; 0 for other objects."""
    optimizer = getattr(model, "optimizer", None)
    variables = [*getattr(model, "weights", []), *getattr(optimizer, "variables", [])]
    return bytes_of(variables) + _OVERHEAD * len(variables)


def bytes_of(variables):
    """Returns the number of bytes of the values of variables."""
    return sum(math.prod(each.shape) * np.dtype(each.dtype).itemsize for each in variables)


def _atomic(original):
    @functools.wraps(original)
    def write(subject, filepath, *args, **kwargs):
        if not launched_process.is_rank_of_several() or not _is_atomic(filepath):
            return original(subject, filepath, *args, **kwargs)
        return _write(filepath, lambda to: original(subject, to, *args, **kwargs), size_of(subject))

    return write


def _atomic_checkpoint(original):
    @functools.wraps(original)
    def write(subject, file_prefix, *args, **kwargs):
        # In a graph this only adds an operation, which writes later.
        if not backends.require().is_eager() or not _is_atomic(file_prefix):
            return original(subject, file_prefix, *args, **kwargs)
        _write(file_prefix, lambda to: original(subject, to, *args, **kwargs))
        return os.fspath(file_prefix)

    return write


def _without_prompt(original):
    @functools.wraps(original)
    def ask(filepath):
        if not launched_process.is_rank_of_several():
            return original(filepath)
        if _is_older_than_this_process(pathlib.Path(filepath)):
            raise FileExistsError(
                "The ranks of a job cannot ask whether to overwrite a file. Pass "
                "`overwrite=True`, or another path. "
                f"Received: overwrite=False, and filepath={os.fspath(filepath)!r}, which exists"
            )
        return True  # this job wrote the file: probably another rank, a moment ago

    return ask


def _is_atomic(filepath):
    """Returns whether a save is atomic. If not, Keras writes to the path directly.

    Args:
        filepath: The user's argument: a string or path, or an open file.
    """
    try:
        path = os.fspath(filepath)
    except TypeError:
        return False
    if not isinstance(path, str) or not path or keras_saving.is_remote(path):
        return False
    is_special = os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))
    # Within `ddl.ModelCheckpoint` or another save, the path is already a temporary path.
    return not is_special and not atomic_files.is_temporary(path)


def _write(filepath, save, size=0):
    """Writes a model file or directory on one of several ranks that may do the same.

    Args:
        filepath: String or path. The path that the script passed, which messages contain.
        save: Function of a temporary path, to which it saves the model.
        size: Integer. The approximate number of bytes.
    """
    given = os.fspath(filepath)

    def write(temporary):
        with keras_saving.shown_as(temporary, given):
            save(temporary)

    with keras_saving.shown_as(os.path.realpath(given), given):
        atomic_files.write_entries(given, write, size, writers=launched_process.size() or 1)


def _is_older_than_this_process(path):
    """Returns whether a file, or any file in a directory, was written before this process started.

    Args:
        path: `pathlib.Path` of a file or directory that exists.
    """
    # Use the time of the file system, because a file server's clock may differ from this host's.
    now = time.time()  # if the directory cannot be written
    with atomic_files.system_errors_suppressed(), tempfile.TemporaryFile(dir=path.parent) as new:
        now = os.fstat(new.fileno()).st_mtime
    files = path.iterdir() if path.is_dir() else [path]
    return any(each.stat().st_mtime < now - processes.age() for each in files)
