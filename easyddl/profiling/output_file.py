"""Output files in directories to which other users may be able to write."""

import contextlib
import errno
import os
import stat


def create(path, mode=0o644):
    """Creates a file, and replaces the file of an earlier job if it is a regular file.

    In a directory that other users can write to, a link could make this process overwrite any file
    of its user. So a link is an error.

    Args:
        path: `pathlib.Path`.
        mode: Integer. The permissions of the file, which the process's umask reduces.

    Returns:
        The file descriptor, for writing.

    Raises:
        OSError: If the path is a link or a special file, or the file cannot be created.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            reason = "it is a symbolic link or a special file, which is not replaced"
            raise FileExistsError(errno.EEXIST, reason, str(path))
        path.unlink()
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
