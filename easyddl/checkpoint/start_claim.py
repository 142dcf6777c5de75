"""Keeps an earlier start of a job from replacing the files of a later one.

`easyddl run --restarts` starts a job again when a host does not answer. The host may only have been
frozen, and its rank may go on to write a file before it is killed. Therefore a small file
`.start-NAME` beside the written file holds the job and the number of its latest start.

This module needs only Python's standard library.
"""

import contextlib
import fcntl
import os
import time
import zlib

from easyddl.checkpoint.atomic_files import system_errors_suppressed

# The variables of a job with restarts: the number of the start, from 1 on, and the job's random id.
NUMBER, JOB = "EASYDDL_START", "_EASYDDL_JOB"

_SHOWN = 60  # characters of a name
_LONGEST = 60.0  # seconds for another start to replace its file


class StartClaim:
    """The claim of a start to be the latest that writes a file. Without restarts, it does nothing.

    Args:
        path: String or path of the file or directory. It may contain fields, as in
            `"model-{epoch:02d}.keras"`.
    """

    def __init__(self, path):
        self._written = os.fspath(path)
        self._path = _path_beside(self._written)

    def take(self):
        """Makes this start the one that writes the file. Call it before the file is read.

        Raises:
            RuntimeError: If a later start of this job has taken it.
        """
        self._path = _path_beside(self._written)  # the script may have changed its directory
        with self.held(takes=True):
            pass

    @contextlib.contextmanager
    def held(self, takes=False):
        """Returns a context in which no other start can take the claim.

        Args:
            takes: Boolean. Whether to take it from an earlier start, or from another job.

        Raises:
            RuntimeError: If a later start of this job, or another job, has taken it, or is within
                this context for long.
        """
        mine = [os.environ.get(JOB), os.environ.get(NUMBER)]
        with self._locked() if all(mine) else contextlib.nullcontext() as file:
            theirs = mine if file is None else file.read().split()
            if theirs != mine:
                is_later = theirs[:1] == mine[:1] and int(theirs[1]) > int(mine[1])
                if is_later or (theirs and not takes):
                    raise RuntimeError(
                        f"Start {mine[1]} of this job writes no more: {self._path} names a later "
                        "one. `easyddl run` had lost this host, and started the job again."
                    )
                file.truncate(0)
                file.write(" ".join(mine))
                file.flush()
            yield

    @contextlib.contextmanager
    def _locked(self):
        """Yields the open file; `None` if its directory or its file system does not allow it."""
        with contextlib.ExitStack() as stack:
            file = None
            with system_errors_suppressed():
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                file = stack.enter_context(open(self._path, "a+"))
                file.seek(0)
                self._lock(file)  # some file systems have no locks
            yield file

    def _lock(self, file):
        """Locks the file until it is closed. A rank that is frozen may hold the lock."""
        end = time.monotonic() + _LONGEST
        while True:
            try:
                return fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise RuntimeError(
                        f"Another start of this job has locked {self._path} for {_LONGEST:.0f} "
                        "seconds. Its rank may be stopped: end it on its host."
                    ) from None
            time.sleep(0.05)


def _path_beside(written):
    """Returns the path of the claim beside a file, whose name may contain fields."""
    whole = os.path.abspath(written)
    before, field, _ = written.partition("{")
    folder, name = os.path.split(before if field else whole)
    folder = os.path.abspath(folder)
    shown = name[:_SHOWN]
    rest = whole[len(os.path.join(folder, shown)) :]
    # Another job may write other files whose names begin alike.
    digest = f"-{zlib.crc32(os.fsencode(rest)):08x}" if rest else ""
    return os.path.join(folder, f".start-{shown}{digest}")
