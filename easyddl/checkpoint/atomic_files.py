"""Writes files and directories atomically.

If a process is killed at any point, or a machine loses its power, the last complete file remains.
A new file is written under a temporary name next to the final one. It is flushed to the disk and
then renamed, which is an atomic operation of the file system.

This module needs only Python's standard library.
"""

import contextlib
import errno
import glob
import os
import pathlib
import re
import shutil
import string

_NEW, _OLD = ".new-", ".old-"


def require_local(name, path):
    """Raises an error if a path is in an object store, where files cannot be renamed atomically.

    Args:
        name: String. The name of the argument, for the error message.
        path: String or path.

    Raises:
        ValueError: If `path` is a URL, or neither a string nor a path.
    """
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "://" in text:
        raise ValueError(
            f"`{name}` must be a path on a local or mounted file system, where files can be "
            f"renamed atomically. Received: {name}={path!r}"
        )


def write_file(path, write, size=0):
    """Writes a file, which replaces an existing file once it is complete.

    Args:
        path: String. The final path, on a local or mounted file system.
        write: Function of a temporary path that writes the file there. The temporary path has the
            final file name in a directory of its own, in which `write` may create other temporary
            files.
        size: Integer. The approximate number of bytes.

    Raises:
        OSError: If the file cannot be written. An existing file remains.
    """
    folder, name = os.path.split(os.path.abspath(path))
    scratch = os.path.join(folder, _NEW + name)
    _require_space(folder, size)
    _remove(pathlib.Path(scratch))
    try:
        os.mkdir(scratch)
        temporary = os.path.join(scratch, name)
        write(temporary)
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _sync(folder)


def _require_space(folder, size):
    # Checked before the write, because HDF5 crashes the process if the disk is full.
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    if state.f_blocks and free < size:  # some file systems report 0 of 0 blocks
        raise OSError(
            errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {size} bytes needed, {free} free", folder
        )


def remove_leftovers(template):
    """Removes the temporary files of killed processes.

    Args:
        template: String. The path of the files. It may contain fields, as in
            `"model-{epoch:02d}.keras"`.
    """
    fields = string.Formatter().parse(template)
    pattern = "".join(
        glob.escape(text) + ("*" if field is not None else "") for text, field, _, _ in fields
    )
    folder, name = os.path.split(pattern)
    for path in glob.glob(os.path.join(folder, _NEW + name)):
        _remove(pathlib.Path(path))


class Generations:
    """A directory that contains the latest backups, each in a directory of its own.

    Each backup is written under a temporary name, and then renamed to `backup-` and its number.
    Therefore a directory with such a name is complete. The highest number is the latest backup.

    Args:
        folder: String or path. It is created when the first backup is written.
        keep: Integer. The number of backups to keep.
    """

    def __init__(self, folder, keep=1):
        self.folder = pathlib.Path(folder)
        self.keep = keep

    def find(self):
        """Returns the paths of the existing backups, the latest first."""
        if not self.folder.is_dir():
            return []
        found = [(_number(path.name), path) for path in self.folder.iterdir()]
        return [path for number, path in sorted(found, reverse=True) if number]

    def add(self, write):
        """Writes a backup, and removes the oldest ones beyond `keep`.

        Args:
            write: Function of the path of an empty directory, in which it writes files.

        Raises:
            OSError: If the backup cannot be written. The existing backups remain.
        """
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            _sync(self.folder.parent)
        number = 1 + max((_number(path.name) for path in self.find()), default=0)
        new = self.folder / f"{_NEW}{number}"
        _remove(new)
        try:
            new.mkdir()
            write(new)
            for path in new.iterdir():
                _sync(path)
            _sync(new)
            new.rename(self.folder / f"backup-{number}")
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        _sync(self.folder)
        self._remove_backups(self.find()[self.keep :])

    def clean(self):
        """Removes the temporary directories of killed processes, and backups beyond `keep`."""
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            if path.name.startswith((_NEW, _OLD)):
                _remove(path)
        self._remove_backups(self.find()[self.keep :])

    def remove(self):
        """Removes all backups, and the directory unless it contains other files."""
        self.clean()
        self._remove_backups(self.find())
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _remove_backups(self, paths):
        for path in paths:
            # Renamed first, so that a partly removed backup does not look like a complete one.
            old = path.with_name(_OLD + path.name)
            _remove(old)
            path.rename(old)
            _remove(old)


def _number(name):
    """Returns the number in the name of a backup; 0 if it is another name."""
    match = re.fullmatch(r"backup-([1-9][0-9]*)", name)
    return int(match[1]) if match else 0


def _remove(path):
    """Removes a file or a directory, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path):
    """Flushes a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
