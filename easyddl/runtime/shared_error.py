"""Prints an error once if several ranks of a host fail with the same error.

This uses no MPI, because a rank that fails does not know what the other ranks are doing. The first
rank binds a socket in Linux's abstract namespace, whose name contains a hash of the error's text.
The kernel refuses this name to all other ranks of the host, and frees it when the first rank ends.
The other ranks send their numbers to this socket.

`easyddl run` receives the output of all hosts, and joins equal errors of all ranks itself: see
`launch/output/error_text.py`.
"""

import contextlib
import hashlib
import os
import re
import socket
import time

from easyddl.hosts import launched_process

_COLLECTED = 0.5  # seconds in which the first rank collects the numbers of the others
_FIRST_ENDS_JOB = 3.0  # seconds after which the first rank has certainly ended the job


def comparable(text):
    """Returns the text of an error with a constant for each address, which differs among ranks.

    Args:
        text: String, as `<__main__.A object at 0x7f65c2a41810> is not a number`.
    """
    return re.sub("0x[0-9a-fA-F]+", "0x...", text)


class SharedError:
    """An error of this rank, and perhaps of other ranks of its host.

    Args:
        text: String. The text of the error that the rank would print. Equal errors have texts that
            `comparable` makes equal.
    """

    def __init__(self, text):
        self._socket = None
        self._address = _address(text)
        self._is_first = self._address is None or not self._is_bound_by_another()

    def _is_bound_by_another(self):
        """Binds the name. Returns whether another rank has bound it, and so prints the error."""
        with contextlib.suppress(OSError):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.bind(self._address)
            return False
        with contextlib.suppress(OSError, AttributeError):  # there may be no socket
            self._socket.connect(self._address)
            return True
        return False

    def is_printed_by_another(self):
        """Sends this rank's number to the rank that prints this error, if there is one.

        Returns:
            Boolean. Whether there is one.
        """
        if self._is_first:
            return False
        with contextlib.suppress(OSError):  # that rank does not receive any more
            self._socket.send(str(launched_process.rank()).encode())
        return True

    def other_ranks(self):
        """Receives the numbers of other ranks with the same error, for half a second.

        Returns:
            Sorted list of integers.
        """
        numbers = []
        end = time.monotonic() + _COLLECTED
        with contextlib.suppress(OSError):  # the time is over
            while self._address is not None and len(numbers) < launched_process.local_size() - 1:
                self._socket.settimeout(max(0.001, end - time.monotonic()))
                numbers.append(int(self._socket.recv(16)))
        return sorted(numbers)


def wait_for_first():
    """Waits for the first rank to end the job. Returns if it does not."""
    time.sleep(_FIRST_ENDS_JOB)


def _address(text):
    """Returns the name of the socket; `None` if this rank shares no errors with others."""
    job = launched_process.nearest()
    if job is None or launched_process.is_supervised():
        return None
    try:
        # Containers may share a network, and therefore socket names, but no process ids.
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None
    key = hashlib.sha256(comparable(text).encode(errors="replace")).hexdigest()[:32]
    return f"\0easyddl-error-{namespace}-{job}-{key}"
