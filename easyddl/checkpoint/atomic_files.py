"""Writes files and directories atomically.

If a process is killed at any point, or a host loses its power, the last complete file remains.
A new file is written under a temporary name next to the final one. It is flushed to the disk and
then renamed, which is an atomic operation of the file system. The temporary name contains the
number of the writing process. So several processes may write the same file, and each one removes
its own leftover temporary files.

This module needs only Python's standard library.
"""

import contextlib
import errno
import fcntl
import glob
import os
import pathlib
import re
import shutil
import string

_NEW, _OLD, _LOCK = ".new-", ".old-", ".lock-"


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
        write: Function of a temporary path that writes the file there: see `write_entries`.
        size: Integer. The approximate number of bytes.

    Raises:
        OSError: If the file cannot be written. An existing file remains.
    """
    _require_space(os.path.dirname(os.path.abspath(path)), size)
    write_entries(path, write)


def write_entries(path, write, writer=0):
    """Writes a file, a directory, or several files that belong together.

    Several processes may write the same path at once. Of a file, the version of the process that
    finishes last remains. Of a directory that did not exist, the version of the process that
    finishes first remains, and the others discard theirs. In a directory that exists, each file is
    replaced once all files are complete, and other files remain. Only one process at a time
    replaces files, so all files are from the process that finishes last.

    Args:
        path: String. The final path, on a local or mounted file system.
        write: Function of a temporary path that writes a file or a directory there, or files whose
            names begin with this path. The temporary path is the final name in a separate
            directory.
        writer: Integer. The number of this process among those that may write the same path.

    Raises:
        OSError: If a file cannot be written. Existing files remain.
    """
    folder, name = os.path.split(os.path.abspath(path))
    with _temporary(path, writer) as temporary:
        before = _names_in(path)
        write(temporary)
        scratch = os.path.dirname(temporary)
        _sync_all(scratch)
        if os.path.isfile(temporary) and os.listdir(scratch) == [name]:
            os.replace(temporary, path)
        else:
            with _locked(os.path.join(folder, _LOCK + name)):
                written = _names_in(temporary)
                # Otherwise another process has written an equal directory in the meantime.
                if not written or not written <= _names_in(path) - before:
                    _move_entries(scratch, folder, last=name.partition(".")[0] + ".")
    _sync(folder)


def is_temporary(path):
    """Returns whether a path, or one above it, is one that is passed to a function `write` here."""
    folders = pathlib.PurePath(path).parts[:-1]
    return any(re.match(r"\.new\d*-", folder) for folder in folders)


def scratch_of(path, writer=0):
    """Returns the temporary directory in which a process writes a path: see `write_entries`."""
    folder, name = os.path.split(os.path.abspath(path))
    new = _NEW if writer == 0 else f".new{writer}-"
    return os.path.join(folder, new + name)


@contextlib.contextmanager
def _temporary(path, writer=0):
    """Returns a context with a new temporary directory. Removes that of a killed process.

    Yields:
        The temporary path, in that directory.
    """
    scratch = scratch_of(path, writer)
    _remove(pathlib.Path(scratch))
    try:
        os.mkdir(scratch)
        yield os.path.join(scratch, os.path.basename(path))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _names_in(path):
    """Returns the set of the names in a directory; an empty set if it does not exist."""
    return set(os.listdir(path)) if os.path.isdir(path) else set()


def _move_entries(source, target, last=""):
    """Moves all files and directories from one directory to another.

    Args:
        source: String. The directory to move from.
        target: String. The directory to move to, on the same file system.
        last: String. Names that begin with this text are moved last, because such a file refers to
            the others.
    """
    for name in sorted(os.listdir(source), key=lambda each: (each.startswith(last), each)):
        _move(os.path.join(source, name), os.path.join(target, name))


def _move(source, target):
    """Moves a file or a directory, and replaces the files that are already there."""
    if not os.path.isdir(source):
        os.replace(source, target)
        return
    try:
        os.rename(source, target)  # replaces an empty directory, too
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        _move_entries(source, target)


@contextlib.contextmanager
def _locked(path):
    """Returns a context that only one process at a time can enter.

    If a process is killed within the context, the operating system releases the lock.

    Args:
        path: String. The lock file, which is removed at the end.
    """
    descriptor = _lock(path)
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)


def _lock(path):
    """Locks a file, and returns its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        with contextlib.suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The previous holder has removed its lock file. If this file is that one, lock a new file.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)


def _require_space(folder, size):
    # Check this before the write, because HDF5 crashes the process if the disk is full.
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
    """A directory that contains the latest backups, each in its own subdirectory.

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
            # Rename it first, so that a partly removed backup does not look complete.
            old = path.with_name(_OLD + path.name)
            _remove(old)
            path.rename(old)
            _remove(old)


def _number(name):
    """Returns the number in the name of a backup; 0 for any other name."""
    match = re.fullmatch(r"backup-([1-9][0-9]*)", name)
    return int(match[1]) if match else 0


def _remove(path):
    """Removes a file or a directory, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync_all(folder):
    """Flushes the files and directories in a directory to the disk."""
    for path, _, names in os.walk(folder):
        for name in names:
            _sync(os.path.join(path, name))
        _sync(path)


def _sync(path):
    """Flushes a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
