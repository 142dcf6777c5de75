"""Makes it safe that several ranks save a model to the same path.

Most scripts end with `model.save("model.keras")`, which all ranks call at once. The ranks' models
are equal, so the file of any rank is correct if it is complete. Therefore, in a job of several
ranks, Keras's functions that write model files write to a temporary path, and the finished file
then replaces the file at the final path: see `atomic_files.write_entries`. The same holds for the
checkpoints that TensorFlow writes itself.

Saving is not a collective, because a script may save on one rank only. It does not start MPI.
"""

import functools
import os
import pathlib
import tempfile

from easyddl import backends
from easyddl.checkpoint import atomic_files
from easyddl.compat import keras_saving, patches
from easyddl.hosts import launched_process
from easyddl.machine import processes
from easyddl.runtime import world

_SAVED_BY_ALL = (
    "easyddl: all ranks have saved the model as {}. Each file is complete. All ranks have the same "
    "model, so one may save it alone: `if ddl.is_root(): model.save(...)`."
)


def install():
    """Patches the functions of Keras that write model files. Called when easyddl is imported."""
    for owner, name in keras_saving.writers():
        patches.install(owner, name, _atomic)
    for owner, name in keras_saving.prompts():
        patches.install(owner, name, _without_prompt)


def install_for(backend):
    """Patches the functions with which a framework itself writes checkpoints.

    Args:
        backend: The active `Backend`.
    """
    for owner, name in backend.checkpoint_writers():
        patches.install(owner, name, _atomic_checkpoint)


def _atomic(original):
    @functools.wraps(original)
    def write(subject, filepath, *args, **kwargs):
        path = _final_path(filepath) if launched_process.is_rank_of_several() else None
        if path is None:
            return original(subject, filepath, *args, **kwargs)
        return _write(path, os.fspath(filepath), lambda to: original(subject, to, *args, **kwargs))

    return write


def _atomic_checkpoint(original):
    @functools.wraps(original)
    def write(subject, file_prefix, *args, **kwargs):
        # In a graph this only adds an operation, which writes later.
        path = _final_path(file_prefix) if backends.require().is_eager() else None
        if path is None:
            return original(subject, file_prefix, *args, **kwargs)
        _write(path, os.fspath(file_prefix), lambda to: original(subject, to, *args, **kwargs))
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


def _final_path(filepath):
    """Returns the final path of an atomic save; `None` if Keras should write to it directly.

    Args:
        filepath: The user's argument: a string or path, or an open file.
    """
    try:
        given = os.fspath(filepath)
    except TypeError:
        return None
    if not isinstance(given, str) or not given or keras_saving.is_remote(given):
        return None
    path = os.path.realpath(given)  # a link remains, and its target is replaced
    is_special = os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path))
    # Within `ddl.ModelCheckpoint` or another save, the path is already a temporary path.
    return None if is_special or atomic_files.is_temporary(path) else path


def _write(path, given, save):
    """Writes a model file or directory on one of several ranks that may do the same.

    Args:
        path: String. The final path.
        given: String. The path that the script passed, for messages.
        save: Function of a temporary path, to which it saves the model.
    """

    def write(temporary):
        with keras_saving.shown_as(temporary, given):
            save(temporary)

    os.makedirs(os.path.dirname(path), exist_ok=True)  # as Keras does for some kinds of files
    atomic_files.write_entries(path, write, writer=launched_process.rank())
    world.warn_at_end("file", _SAVED_BY_ALL, given)


def _is_older_than_this_process(path):
    """Returns whether a file, or any file in a directory, was written before this process started.

    Args:
        path: `pathlib.Path` of a file or directory that exists.
    """
    # Use the time of the file system, because a file server's clock may differ from this host's.
    with tempfile.TemporaryFile(dir=path.parent) as new:
        now = os.fstat(new.fileno()).st_mtime
    files = path.iterdir() if path.is_dir() else [path]
    return any(each.stat().st_mtime < now - processes.age() for each in files)
