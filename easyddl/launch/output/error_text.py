"""Finds the errors that end a program in what the program writes to standard error.

Python prints such an error as a traceback. easyddl's exception hook adds a line that begins with
`easyddl: rank `. All ranks often fail by one error, so its text is kept back from the output until
it is known to be one that ends the program. `easyddl run` then shows it once.
"""

import re
import time

from easyddl.runtime import shared_error

_LONGEST_HOLD = 0.5  # seconds from a traceback to the end of its program
_LARGEST = 1 << 20  # bytes of one error

# The first line of a traceback, behind a progress bar that may be unfinished. Python prints errors
# of a script's syntax without one, and a script that it cannot open is a single line. A line may be
# very long, so no pattern here begins a second search within what it has already read.
_BEGIN = re.compile(
    rb"(?:  \+ Exception Group )?Traceback \(most recent call last\):\r*\n\Z"
    rb"|\A  File \"[^\"]*\", line \d+\r*\n\Z"
    rb"|\A(?=.*?python).*: can't open file "
)

# What MPICH prints on a rank that easyddl ends by MPI_Abort.
_ABORT = re.compile(
    rb"Abort\(\d+\) on node \d+ \(rank \d+ in comm \d+\): application called MPI_Abort\("
    rb"|\[(?:cli|kvs)[^\]\s]+\]: PMIU_write error; .*cmd=abort|:\r*\n"
    rb"|system msg for write_line failure : "
)

# The calls of the error itself, or of one that led to it or came of it. The message of an error may
# contain a traceback, too.
_FRAMES = re.compile(
    r"(?:\A|^(?:The above exception was the direct cause of the following exception"
    r"|During handling of the above exception, another exception occurred):\n\n)"
    r"Traceback \(most recent call last\):\n(?:(?:[ \t].*|[~^]+)\n)*",
    re.M,
)
_MESSAGE = re.compile(r"easyddl: rank \d+ on host \S+ failed[^:]*: (.+)")


class ErrorText:
    """Holds back the lines about an error until it is known whether the error ends the program.

    Args:
        rank: Integer. The rank of the program.
    """

    def __init__(self, rank):
        # The two forms of easyddl's exception hook, and that of a program that exits by itself.
        self._end = re.compile(
            rb"easyddl: rank %d on host \S+ "
            rb"(?:failed: |failed before easyddl had started: |exited with status \d+\. Ending )"
            % rank
        )
        self._held = []
        self._since = 0.0
        self._is_over = False  # whether easyddl is ending the program
        self._has_ended = False  # whether the program has ended

    @property
    def is_held(self):
        """Whether lines are held back."""
        return bool(self._held)

    def add(self, line):
        """Takes a line, or a part of one.

        Returns:
            Pair: a list of what to pass on now, and the `error` that ends the program or `None`.
        """
        if self._end.match(line):
            self._is_over = True
            return [], self._error(line)
        if self._held:
            self._held.append(line)
            return self.overdue(), None
        if self._is_over and _ABORT.match(line):
            return [], None
        begin = _BEGIN.search(line)
        if begin is None:
            return [line], None
        self._held, self._since = [line[begin.start() :]], time.monotonic()
        return [line[: begin.start()]] if begin.start() else [], None

    def expect_nothing_else(self):
        """Records that the program has ended, so that its last lines contain the reason."""
        self._has_ended = True

    def overdue(self):
        """Returns lines that were held back for too long, because the program continues."""
        if self._has_ended or not self._held:
            return []
        is_late = time.monotonic() > self._since + _LONGEST_HOLD
        return self.release() if is_late or sum(map(len, self._held)) > _LARGEST else []

    def release(self):
        """Returns all lines that are held back, to pass them on as normal output."""
        held, self._held = self._held, []
        return held

    def error_at_end(self):
        """Returns the error by which the program has failed, or `None` if it has printed none."""
        return self._error(b"") if self._held else None

    def _error(self, line):
        """Returns an error as a dictionary: its traceback as `text`, and the line that names it."""
        text = b"".join(self.release())
        return {
            "text": text.decode("utf-8", "surrogateescape"),
            "line": line.decode("utf-8", "surrogateescape"),
        }


def key_of(error):
    """Returns a key of an error, which is equal for ranks that failed in the same way.

    Args:
        error: Dictionary, as `ErrorText` makes it.
    """
    line = re.sub(r"rank \d+ on host \S+", "", error["line"], count=1)
    return shared_error.comparable(error["text"]), shared_error.comparable(line)


def message_of(error):
    """Returns the lines of an error's type and message, without the calls that lead to it.

    Args:
        error: Dictionary, as `ErrorText` makes it.
    """
    text, frames = error["text"].rstrip(), list(_FRAMES.finditer(error["text"]))
    message = text[frames[-1].end() :] if frames else ""
    # An exception group has no such lines.
    found = _MESSAGE.match(error["line"])
    return (message or (found[1] if found else text)).splitlines()


def without_abort(lines):
    """Leaves out what MPI prints when easyddl aborts a job.

    Args:
        lines: List of strings without line ends.
    """
    return [line for line in lines if not _ABORT.match(f"{line}\n".encode(errors="replace"))]
