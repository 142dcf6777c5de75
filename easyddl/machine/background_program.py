"""A program that runs in the background, with its output in a file."""

import contextlib
import os
import signal
import subprocess
import tempfile

from easyddl.machine import process_tree

_KILL = 5.0  # seconds until the kernel has ended a killed process, unless its disk or driver hangs


class BackgroundProgram:
    """A program in a separate session, so that Ctrl-C does not reach it.

    Its standard input is empty. Its output and its errors go to one file.

    Args:
        command: List of strings.
        **options: Further arguments of `subprocess.Popen`.

    Raises:
        OSError: If the program cannot be started.
    """

    def __init__(self, command, **options):
        # A pipe that nobody reads would fill up. A file does not.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **options,
            )
        except BaseException:
            self._output.close()
            raise

    @property
    def status(self):
        """The exit status; `None` while the program runs."""
        return self._process.poll()

    def has_ended(self):
        """Returns whether the program has ended."""
        return self.status is not None

    def output(self, most=None):
        """Returns the end of what the program has printed, as a string.

        Args:
            most: Integer. The number of bytes that are read. Defaults to `None`, all.
        """
        # `pread` does not change the position in the file, at which the program writes.
        descriptor = self._output.fileno()
        size = os.fstat(descriptor).st_size
        most = size if most is None else most
        return os.pread(descriptor, most, max(0, size - most)).decode(errors="replace")

    def ask_to_end(self):
        """Sends SIGTERM, which `easyddl run` passes on to its ranks."""
        if not self.has_ended():
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds):
        """Returns whether the program ends within some seconds; `None` waits for its end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.has_ended()

    def kill(self):
        """Kills the program and its descendants, and waits for the program's end."""
        if not self.has_ended():
            process_tree.kill_with_descendants(self._process.pid)
        self.wait(_KILL)

    def end_within(self, seconds):
        """Asks the program to end, and kills it if it still runs after some seconds."""
        self.ask_to_end()
        if not self.wait(seconds):
            self.kill()

    def close(self):
        """Closes the file of the output."""
        self._output.close()

    def forget(self):
        """Leaves the program to the process that has forked this one."""
        self._process.returncode = 0  # a child cannot wait for it
        self.close()
