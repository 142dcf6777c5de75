"""Writes files and directories atomically.

If a process is killed at any point, or a host loses its power, the last complete file remains.
A new file is written in a temporary directory next to the final path. It is flushed to the disk and
then renamed, which is an atomic operation of the file system. Each save has its own temporary
directory, so several processes and threads may write the same file. While they do, they share a
lock. The last of them removes the lock file, and the temporary directories of killed processes.

A rename replaces the whole file, so the new file first takes the owner, the permissions and the
extended attributes of the old one. Where this or the rename is not possible, the content of the old
file is replaced. A reader, and a process that is killed, may then leave or see an incomplete file.

Besides Python's standard library, this module needs only `user_code`.
"""

import contextlib
import errno
import fcntl
import fnmatch
import glob
import io
import os
import pathlib
import re
import shutil
import string
import struct
import tempfile

from easyddl.compat import user_code

_NEW, _OLD, _LOCK = ".new-", ".old-", ".lock-"

# The characters of a file's name that are part of temporary names, which may have 255 bytes. Files
# whose names begin with the same characters share a lock.
_SHOWN = 60
_RANDOM = "?" * 8  # matches the characters that `tempfile.mkdtemp` adds

# The errors of a write that may succeed in another directory.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.ENAMETOOLONG)

# The bytes of a lock file: one for all that write, and one for the process that moves its files.
_WRITING, _MOVING = 0, 1


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


@contextlib.contextmanager
def system_errors_suppressed():
    """Returns a context that suppresses `OSError`, unless a signal handler has raised it."""
    try:
        yield
    except OSError as error:
        if user_code.is_of_handler(error):
            raise


def write_entries(path, write, size=0, writers=1, held=contextlib.nullcontext):
    """Writes a file, a directory, or several files that belong together.

    Several processes and threads may write the same path at once. Of a file, the version that is
    finished last remains. Of a directory that did not exist, the version that is finished first
    remains, and the others are discarded. In a directory that exists, each file is replaced once
    all files are complete, and other files remain. Only one process at a time replaces files, so
    all files are from the process that finishes last.

    If the disk has no room for the versions of all writers at once, they write one after another.
    If it has no room for another version beside the old one, or the directory cannot be written,
    the new version is written to a directory for temporary files, and then copied.

    Args:
        path: String. The final path, on a local or mounted file system. The target of a link is
            replaced, and the link remains.
        write: Function of a temporary path that writes a file or a directory there, or files whose
            names begin with this path. It also makes directories of the path that do not exist, if
            it should. The temporary path ends with the name in `path`, also if this is a link.
        size: Integer. The approximate number of bytes.
        writers: Integer. The number of processes that may write this path at once.
        held: Function that returns the context in which existing files are replaced.

    Raises:
        OSError: If a file cannot be written. Existing files remain.
    """
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        os.close(os.open(path, os.O_WRONLY))  # fails as a plain write does, for a read-only file
    link, path = path, _resolved(path)
    given = os.path.basename(link if os.path.islink(link) else path)
    folder, name = _existing_folder(path)
    kind = fcntl.F_WRLCK if _free(folder) < writers * size else fcntl.F_RDLCK
    with _open_lock(os.path.join(folder, _LOCK + _first(name)), kind) as lock:
        try:
            before = _names_in(path)
            scratch = _write_scratch(folder, name, given, write, size)
            try:
                _sync_all(scratch)
                with held():
                    _move_scratch(scratch, folder, name, before, lock)
            finally:
                _remove(scratch)
        finally:
            _leave(lock)
    _sync(folder)


def _move_scratch(scratch, folder, name, before, lock):
    """Moves what a temporary directory contains to its final place.

    Args:
        scratch: String. The temporary directory.
        folder: String. The directory to move to.
        name: String. The relative path that was written.
        before: Set of the names that the directory at the final path had before.
        lock: The file of `_open_lock`.
    """
    new, path = os.path.join(scratch, name), os.path.join(folder, name)
    if os.path.isfile(new) and os.listdir(scratch) == [name]:
        _move(new, path)
        return
    _lock(lock, fcntl.F_WRLCK, _MOVING)
    written = _names_in(new)
    # Otherwise another process has written an equal directory in the meantime.
    if not written or not written <= _names_in(path) - before:
        # Keras writes the file that names the shards of weights with this suffix.
        _move_entries(scratch, folder, last=pathlib.PurePath(name).with_suffix(".json").name)


def is_temporary(path):
    """Returns whether a path, or one above it, is one that is passed to a function `write` here."""
    folders = pathlib.PurePath(path).parts[:-1]
    return any(fnmatch.fnmatchcase(folder, f"{_NEW}*-{_RANDOM}") for folder in folders)


def _resolved(path):
    """Returns an absolute path, without links if its directory exists."""
    path = os.path.join("" if os.path.isabs(path) else os.getcwd(), path).rstrip("/")
    # Otherwise `realpath` removes "missing/..", where a plain write fails.
    return os.path.realpath(path) if os.path.isdir(os.path.dirname(path)) else path


def _existing_folder(path):
    """Splits a path into its innermost directory that exists, and the rest."""
    folder, name = os.path.split(path)
    while not os.path.isdir(folder):
        folder, parent = os.path.split(folder)
        name = os.path.join(parent, name)
    return folder, name


def _first(name):
    """Returns the first part of a relative path, as far as it is part of temporary names."""
    return pathlib.PurePath(name).parts[0][:_SHOWN]


def _write_scratch(folder, name, given, write, size):
    """Writes to a new temporary directory.

    Args:
        folder: String. The directory in which to make it, or in a directory for temporary files if
            this one cannot be written or has no room.
        name: String. The relative path in the temporary directory.
        given: String. Its last part while it is written.
        write: Function of the path that writes there.
        size: Integer. The approximate number of bytes.

    Returns:
        String. The temporary directory.
    """
    failure = None
    for place in _places(folder):
        scratch = None
        try:
            _require_space(place, size)
            scratch = tempfile.mkdtemp("", f"{_NEW}{_first(name)}-", place)
            path = os.path.join(scratch, name)
            written = os.path.join(os.path.dirname(path), given)
            write(written)
            if os.path.exists(written):
                os.rename(written, path)
            return scratch
        except BaseException as error:
            if scratch is not None:
                _remove(scratch)
            is_of_system = isinstance(error, OSError) and not user_code.is_of_handler(error)
            if not is_of_system or (scratch and error.errno not in _NO_ROOM):
                raise
            failure = failure or error
    raise failure


def _places(folder):
    """Yields the directories for temporary files, the best first."""
    yield folder
    yield tempfile.gettempdir()
    yield "/dev/shm"


def _open_lock(path, kind):
    """Opens and locks a lock file, which processes and threads share that write the same files.

    The file itself is the context that closes it, because no signal handler can raise an error
    half-way through a function in C. For a lock that remained, the next writer would wait forever.

    Args:
        path: String. The path of the lock file.
        kind: `fcntl.F_RDLCK`, or `fcntl.F_WRLCK` to wait until no other has locked the file.

    Returns:
        The open file, as a context; a context of `None` if there can be none.
    """
    while True:
        file = None
        with system_errors_suppressed():
            file = io.FileIO(path, "a+")
        if file is None:
            return contextlib.nullcontext()
        try:
            is_locked = _lock(file, kind, _WRITING)
            # The last holder has removed its lock file. If this file is that one, lock a new file.
            if is_locked and _is_at_its_path(file):
                return file
        except BaseException:
            file.close()
            raise
        file.close()
        if not is_locked:  # some file systems have no locks
            with system_errors_suppressed():
                os.unlink(path)
            return contextlib.nullcontext()


def _leave(lock):
    """Unlocks a file of `_open_lock`. The last process and thread removes it.

    It also removes the temporary directories of killed processes.
    """
    # A forked process may still have the descriptor. So do not leave this to `close`.
    _lock(lock, fcntl.F_UNLCK, _MOVING)
    _lock(lock, fcntl.F_UNLCK, _WRITING)
    if _lock(lock, fcntl.F_WRLCK, _WRITING, wait=False) and _is_at_its_path(lock):
        folder, name = os.path.split(glob.escape(lock.name))
        name = name.removeprefix(_LOCK)
        for scratch in glob.glob(os.path.join(folder, f"{_NEW}{name}-{_RANDOM}")):
            _remove(scratch)
        with system_errors_suppressed():  # it may be another user's
            os.unlink(lock.name)


def _lock(file, kind, byte, wait=True):
    """Locks or unlocks a byte of an open file. If a process is killed, its locks are released.

    The lock belongs to the open file, not to the process as that of `fcntl.lockf`. Unlike that of
    `fcntl.flock`, it does not interfere with the locks of HDF5.

    Returns:
        Boolean. `False` if another holds the lock, or the file system has no locks.
    """
    if file is None:
        return False
    command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    with system_errors_suppressed():
        fcntl.fcntl(file, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0))
        return True
    return False


def _is_at_its_path(file):
    """Returns whether an open file has not been removed or replaced."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(file.name))
    except FileNotFoundError:
        return False


def _names_in(path):
    """Returns the set of the names in a directory; an empty set if it does not exist."""
    return set(os.listdir(path)) if os.path.isdir(path) else set()


def _move_entries(source, target, last=""):
    """Moves all files and directories from one directory to another.

    Args:
        source: String. The directory to move from.
        target: String. The directory to move to.
        last: String. Names that begin with this text are moved last, because such a file refers to
            the others.
    """
    for name in sorted(os.listdir(source), key=lambda each: (each.startswith(last), each)):
        _move(os.path.join(source, name), os.path.join(target, name))


def _move(source, target):
    """Moves a file or a directory, and replaces the files that are already there.

    A new file takes the owner and the permissions of the old one. If it cannot replace the old
    file, for example because this is a mount point, the content of the old file is replaced.
    """
    target = os.path.realpath(target)
    with system_errors_suppressed():
        if _take_status(source, target):
            os.replace(source, target)
            return
    if not os.path.isdir(source):
        _copy(source, target)
        return
    if os.stat(source).st_dev != os.stat(_place_of(target)).st_dev:
        _require_space_for_copy(source, target)
    with contextlib.suppress(FileExistsError):
        os.mkdir(target)
    _move_entries(source, target)


def _take_status(source, target):
    """Gives a new file the owner and the permissions of an old one.

    Returns:
        Boolean. Whether the new file may replace what is at the path: not a directory, and not a
        file with another hard link, which would keep the old content.
    """
    if not os.path.exists(target):
        return True
    old, new = os.stat(target), os.stat(source)
    if os.path.isdir(source) or old.st_nlink > 1:
        return False
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.chown(source, old.st_uid, old.st_gid)
    shutil.copystat(target, source)  # permissions and extended attributes, and also times
    os.utime(source)
    return True


def _copy(source, target):
    """Replaces the content of a file, one process at a time."""
    _require_space_for_copy(source, target)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT, 0o666)
    with open(descriptor, "wb") as file, open(source, "rb") as new:
        _lock(file, fcntl.F_WRLCK, _WRITING)
        file.truncate(0)  # no reader takes a mixture of two files for a complete one
        shutil.copyfileobj(new, file)
        file.flush()
        os.fsync(descriptor)


def _free(path):
    """Returns the number of bytes that are free on the disk of a file or a directory."""
    state = os.statvfs(path)
    # Some file systems report 0 of 0 blocks.
    return state.f_bavail * state.f_frsize if state.f_blocks else float("inf")


def _require_space(path, size):
    # Check this before the write, because HDF5 crashes the process if the disk is full.
    free = _free(path)
    if free < size:
        raise OSError(
            errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {size} bytes needed, {free} free", path
        )


def _require_space_for_copy(source, target):
    """Raises an error if the content of a file or a directory cannot replace that of another."""
    _require_space(_place_of(target), _size_on_disk(source) - _size_on_disk(target))


def _place_of(path):
    """Returns a file or a directory, which may be a mount point, or else its directory."""
    return path if os.path.exists(path) else os.path.dirname(path)


def _size_on_disk(path):
    inner = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    return 512 * sum(os.stat(each).st_blocks for each in (path, *inner) if os.path.isfile(each))


def remove_leftovers(template):
    """Removes the temporary files of killed processes.

    Args:
        template: String. The path of the files. It may contain fields, as in
            `"model-{epoch:02d}.keras"`.
    """
    folder, name = os.path.split(template)
    folder = "".join(
        glob.escape(text) + ("*" if field is not None else "")
        for text, field, _, _ in string.Formatter().parse(folder)
    )
    begin = glob.escape(name.partition("{")[0][:_SHOWN])
    for path in glob.glob(os.path.join(folder, f"{_LOCK}{begin}*")):
        with _open_lock(path, fcntl.F_RDLCK) as lock:
            _leave(lock)


class Generations:
    """A directory that contains the latest backups, each in its own subdirectory.

    Each backup is written under a temporary name, and then renamed to `backup-` and its number.
    Therefore a directory with such a name is complete. The highest number is the latest backup.

    Args:
        folder: String or path. It is created when the first backup is written.
        keep: Integer. The number of backups to keep.
        held: Function that returns the context in which backups are added and removed.
    """

    def __init__(self, folder, keep=1, held=contextlib.nullcontext):
        self.folder = pathlib.Path(folder)
        self.keep = keep
        self._held = held

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
        # An earlier start of the job, which its launcher has lost, may still write one.
        new = self.folder / f"{_NEW}{number}-{os.urandom(4).hex()}"
        try:
            new.mkdir()
            write(new)
            _sync_all(new)
            with self._held():
                new.rename(self.folder / f"backup-{number}")
        except BaseException:
            _remove(new)
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
        with self._held():
            self.clean()
            self._remove_backups(self.find())
            with system_errors_suppressed():
                self.folder.rmdir()

    def _remove_backups(self, paths):
        for path in paths:
            # Rename it first, so that a partly removed backup does not look complete.
            old = path.with_name(_OLD + path.name)
            _remove(old)
            if not old.exists():
                path.rename(old)
                _remove(old)


def _number(name):
    """Returns the number in the name of a backup; 0 for any other name."""
    match = re.fullmatch(r"backup-([1-9][0-9]*)", name)
    return int(match[1]) if match else 0


def _remove(path):
    """Removes a file or a directory, if it exists and can be removed.

    On NFS, a directory remains while another process reads a file of it.
    """
    with system_errors_suppressed():
        try:
            shutil.rmtree(path)
        except NotADirectoryError:
            os.unlink(path)


def _sync_all(folder):
    """Flushes the files and directories in a directory to the disk."""
    for path, _, names in os.walk(folder):
        for name in names:
            _sync(os.path.join(path, name))
        _sync(path)


def _sync(path):
    """Flushes a file, or the entries of a directory, to the disk.

    Some directories can be written and not be read, and some file systems flush none.
    """
    ignored = (errno.EACCES, errno.EINVAL, errno.ENOTSUP) if os.path.isdir(path) else ()
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in ignored:
            raise
