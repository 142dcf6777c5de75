"""Files and directories that appear whole, or not at all.

A process that is killed at any point, or a machine that loses its power, leaves the last whole
one. What is being written has a temporary name beside the final one, reaches the disk, and is
then renamed, which file systems do at one stroke.

This module needs nothing but Python.
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
    """Raises an error if a path is that of a store, where nothing can be renamed at one stroke.

    Args:
        name: String. The argument's name.
        path: String or path.
    """
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "://" in text:
        raise ValueError(
            f"`{name}` must be a path on a local or mounted file system, where a file can be "
            f"renamed at one stroke. Received: {name}={path!r}"
        )


def write_file(path, write, size=0):
    """Writes a file that replaces the one of its name, if there is one, when it is whole.

    Args:
        path: String. Its final path, on a local or mounted file system.
        write: Function of a temporary path that writes the file there. It has the name of the
            final one, in a directory of its own, where other temporary files may lie as well.
        size: Integer. About how many bytes it will have.

    Raises:
        OSError: If it cannot be written. The file that was there remains.
    """
    folder, name = os.path.split(os.path.abspath(path))
    room = os.path.join(folder, _NEW + name)
    _require_space(folder, size)
    _remove(pathlib.Path(room))
    try:
        os.mkdir(room)
        temporary = os.path.join(room, name)
        write(temporary)
        _sync(temporary)
        os.replace(temporary, path)
    finally:
        shutil.rmtree(room, ignore_errors=True)
    _sync(folder)


def _require_space(folder, size):
    # Asked before, since not all who write can fail: HDF5 crashes the process on a full disk.
    state = os.statvfs(folder)
    free = state.f_bavail * state.f_frsize
    if state.f_blocks and free < size:  # some file systems cannot tell, and say 0 of 0
        raise OSError(
            errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {size} bytes needed, {free} free", folder
        )


def remove_leftovers(template):
    """Removes what killed writers of files have left behind.

    Args:
        template: String. The files' path, which may hold fields, as `"model-{epoch:02d}.keras"`.
    """
    fields = string.Formatter().parse(template)
    pattern = "".join(
        glob.escape(text) + ("*" if field is not None else "") for text, field, _, _ in fields
    )
    folder, name = os.path.split(pattern)
    for path in glob.glob(os.path.join(folder, _NEW + name)):
        _remove(pathlib.Path(path))


class Generations:
    """A directory that holds the last states of something, each in a directory of its own.

    Each state is written under a temporary name and then renamed to `backup-` and its number:
    one that has such a name is whole. The highest number is the latest.

    Args:
        folder: String or path. It is made when the first state is written.
        keep: Integer. How many states to keep.
    """

    def __init__(self, folder, keep=1):
        self.folder = pathlib.Path(folder)
        self.keep = keep

    def find(self):
        """The paths of the states that are there, the latest first."""
        if not self.folder.is_dir():
            return []
        found = [(_number(path.name), path) for path in self.folder.iterdir()]
        return [path for number, path in sorted(found, reverse=True) if number]

    def add(self, write):
        """Writes a state, and removes those that are too many then.

        Args:
            write: Function of the path of an empty directory, which it fills with files.

        Raises:
            OSError: If it cannot be written. The states that were there remain.
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
        self._retire(self.find()[self.keep :])

    def clean(self):
        """Removes what a killed writer has left behind."""
        if not self.folder.is_dir():
            return
        for path in self.folder.iterdir():
            if path.name.startswith((_NEW, _OLD)):
                _remove(path)
        self._retire(self.find()[self.keep :])

    def remove(self):
        """Removes all states, and the directory unless there is something else in it."""
        self.clean()
        self._retire(self.find())
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _retire(self, paths):
        for path in paths:
            # Renamed first: a state that is removed in part must not look like a whole one.
            old = path.with_name(_OLD + path.name)
            _remove(old)
            path.rename(old)
            _remove(old)


def _number(name):
    """The number of a state, from its name; 0 if the name is none of one."""
    match = re.fullmatch(r"backup-([1-9][0-9]*)", name)
    return int(match[1]) if match else 0


def _remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path):
    """Has the disk hold a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
