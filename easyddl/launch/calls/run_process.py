"""The process `easyddl run` that starts the ranks of a notebook or script."""

import sys

from easyddl.machine import cpu_list
from easyddl.machine.background_program import BackgroundProgram
from easyddl.runtime import deadlines

_TAIL = 1 << 14  # bytes
_LINES = 20

_GRACE = 5.0  # seconds between asking it to end and killing it


def command(size, hosts, variables, cpus, start_timeout, options, calls):
    """Returns the command line that starts a Python module as ranks.

    The module and its arguments follow it.

    Args:
        size: Integer. The number of ranks.
        hosts: String such as `h1:4,h2:4`, or `None` for this host or the scheduler's hosts.
        variables: Names of the environment variables that the ranks need.
        cpus: List of the CPUs that the ranks may use; `None` for those of this process.
        start_timeout: Float, in seconds. `easyddl run` gets less, to tell the reason before.
        options: Sequence of strings. Further options of `easyddl run`.
        calls: Integer. The descriptor of a socket to which the output of calls is sent.
    """
    line = [sys.executable, "-m", "easyddl", "run", "-np", str(size), "--no-prefix", "--quiet"]
    line += ["--start-timeout", str(deadlines.earlier(start_timeout)), "--calls", str(calls)]
    if hosts is not None:
        line += ["-H", hosts]
    if cpus is not None:
        line += ["--cpus", cpu_list.render(cpus)]
    for name in variables:
        line += ["--env", name]
    return [*line, *options, "--", sys.executable, "-m"]


class LauncherProcess(BackgroundProgram):
    """The launcher of the ranks. It ends the ranks on all hosts when it ends.

    Args:
        line: List of strings. The command line.
        environment: Mapping.
        calls: The socket for the output of calls, which the process inherits.
    """

    def __init__(self, line, environment, calls):
        super().__init__(line, env=environment, pass_fds=[calls.fileno()])
        self._last_words = None

    def last_lines(self):
        """Returns the last lines that the launcher has printed, as one string."""
        if self._last_words is None:
            return self._read()
        return self._last_words

    def _read(self):
        return "\n".join(self.output(_TAIL).rstrip().splitlines()[-_LINES:])

    def end(self):
        """Ends the launcher, which ends the ranks on all hosts."""
        self.ask_to_end()
        if not self.wait(_GRACE):
            self.kill()
        if self._last_words is None:
            self._last_words = self._read()
            self.close()

    def forget(self):
        """Leaves the launcher to the process that has forked this one."""
        self._last_words = ""
        super().forget()
