"""The process `easyddl run` that starts the ranks of a notebook or script."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile

from easyddl.runtime import cpu_list

_TAIL = 1 << 14  # bytes
_LINES = 20

_TERMINATE, _KILL = 5.0, 5.0  # seconds that it has to end after each signal


def command(size, hosts, variables, cpus, start_timeout, options):
    """The command line that starts Python modules as ranks. The module and its arguments follow it.

    Args:
        size: Integer. The number of ranks.
        hosts: String such as `h1:4,h2:4`, or `None` for this host or the scheduler's hosts.
        variables: Names of the environment variables that the ranks need.
        cpus: List of the CPUs that the ranks may use; `None` for those of this process.
        start_timeout: Float, in seconds.
        options: Sequence of strings. Further options of `easyddl run`.
    """
    line = [sys.executable, "-m", "easyddl", "run", "-np", str(size), "--no-prefix", "--quiet"]
    line += ["--start-timeout", str(start_timeout)]
    if hosts is not None:
        line += ["-H", hosts]
    if cpus is not None:
        line += ["--cpus", cpu_list.render(cpus)]
    for name in variables:
        line += ["--env", name]
    return [*line, *options, "--", sys.executable, "-m"]


class LauncherProcess:
    """The launcher of the ranks, in a session of its own.

    Signals to the caller's process group, such as that of a notebook's interrupt, do not reach it.

    Args:
        line: List of strings. The command line.
        environment: Mapping.
    """

    def __init__(self, line, environment):
        # A file never fills up, as a pipe does that nobody reads.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        try:
            self._process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except BaseException:
            self._output.close()
            raise
        self._last_words = None

    def has_ended(self):
        return self._process.poll() is not None

    @property
    def status(self):
        """The exit status; `None` while the launcher runs."""
        return self._process.returncode

    def wait(self, seconds):
        """Whether the launcher ends within some seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.has_ended()

    def last_lines(self):
        """The last lines that the launcher has printed, as one string."""
        if self._last_words is None:
            return self._read()
        return self._last_words

    def _read(self):
        # The launcher writes at the position of the file that both processes share.
        descriptor = self._output.fileno()
        start = max(0, os.fstat(descriptor).st_size - _TAIL)
        text = os.pread(descriptor, _TAIL, start).decode(errors="replace")
        return "\n".join(text.rstrip().splitlines()[-_LINES:])

    def end(self):
        """Ends the launcher, which ends the ranks on all hosts."""
        with contextlib.suppress(ProcessLookupError):
            if not self.has_ended():
                self._process.send_signal(signal.SIGTERM)
            if not self.wait(_TERMINATE):
                os.killpg(self._process.pid, signal.SIGKILL)
                self.wait(_KILL)
        if self._last_words is None:
            self._last_words = self._read()
            self._output.close()

    def forget(self):
        """Leaves the launcher to the process that has forked this one."""
        self._output.close()
        self._last_words = ""
        self._process.returncode = 0  # a child cannot wait for it
