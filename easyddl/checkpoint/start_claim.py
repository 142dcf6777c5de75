"""Keeps an earlier start of a job from replacing the files of a later one.

`easyddl run --restarts` starts a job again when a host does not answer. The host may only have been
frozen, and its rank may go on to write a file before it is killed. Therefore a small file
`.start-NAME` beside the written file holds the job and the number of its latest start.

This module needs only Python's standard library.
"""

import contextlib
import fcntl
import os

# The variables of a job with restarts: the number of the start, from 1 on, and the job's random id.
NUMBER, JOB = "EASYDDL_START", "_EASYDDL_JOB"

_SHOWN = 60  # characters of a name


class StartClaim:
    """The claim of a start to be the latest that writes a file. Without restarts, it does nothing.

    Args:
        path: String or path of the file or directory. It may contain fields, as in
            `"model-{epoch:02d}.keras"`.
    """

    def __init__(self, path):
        folder, name = os.path.split(os.path.abspath(os.fspath(path).partition("{")[0]))
        self._path = os.path.join(folder, f".start-{name[:_SHOWN]}")
        self._is_taken = False

    def take(self):
        """Makes this start the one that writes the file. Call it before the file is read.

        Raises:
            RuntimeError: If a later start of this job has taken it.
        """
        self._is_taken = False
        with self.held():
            self._is_taken = True

    @contextlib.contextmanager
    def held(self):
        """Returns a context in which no other start can take the claim.

        Raises:
            RuntimeError: If a later start of this job, or another job, has taken it.
        """
        job, number = os.environ.get(JOB), os.environ.get(NUMBER, "")
        file = self._lock() if job and number.isdigit() else None
        if file is None:
            yield
            return
        try:
            theirs = file.read().split()
            if theirs != [job, number]:
                self._check(theirs, job, int(number))
                file.seek(0)
                file.truncate()
                file.write(f"{job} {number}\n")
                file.flush()
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # a forked process may still have the file
            file.close()

    def _check(self, theirs, job, number):
        is_later = theirs[:1] == [job] and int(theirs[-1]) > number
        if is_later or (self._is_taken and theirs and theirs[0] != job):
            raise RuntimeError(
                f"Start {number} of this job writes no more: {self._path} names a later start. "
                "`easyddl run` had lost this host, and started the job again."
            )

    def _lock(self):
        """Opens and locks the file; `None` if its directory does not allow it."""
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), exist_ok=True)
            file = open(self._path, "r+" if os.path.exists(self._path) else "w+")  # noqa: SIM115
            with contextlib.suppress(OSError):  # some file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
            return file
        return None
