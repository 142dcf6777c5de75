"""Finds out by the launcher's remote shell why hosts have not reported.

Launchers report some of these causes only in an exit status, and others not at all. MPICH keeps
waiting for a host without Python, and does not report a missing directory.
"""

import os
import shlex
import socket
import sys

from easyddl.hosts import granted_hosts, host_list
from easyddl.launch.supervise import host_check, missing
from easyddl.machine import process_tree
from easyddl.machine.background_program import BackgroundProgram
from easyddl.runtime import command_process

_MOST = 8  # hosts that are inspected for a message
_MOST_BYTES = 1 << 20  # of the output of an inspection
_NOT_A_REASON = (host_check.MARK, host_check.HOST, "srun: error: ")  # srun's statuses come last


class Inspections:
    """The inspections of those hosts of a job that have not reported.

    Args:
        line: `CommandLine`.
        addresses: List of strings, such as `10.0.0.1:40000`. Where `easyddl run` listens.
        most: Integer. The number of hosts that are inspected.
    """

    def __init__(self, line, addresses, most=_MOST):
        self._line = line
        self._most = most
        self._script = _script(addresses)
        self._running = {}  # by host

    def begin(self, names):
        """Begins to inspect hosts that are not yet inspected, if there is a remote shell.

        Args:
            names: List of strings.
        """
        for name in names:
            if self._line.on_host is None or len(self._running) == self._most:
                return
            if name not in self._running:
                words = ["sh", "-c", self._script]
                is_here = host_list.is_this_host(name)
                command = words if is_here else self._line.on_host(name, words)
                self._running[name] = _Inspection(name, command)

    def have_ended(self):
        """Returns whether no inspection runs."""
        return all(each.has_ended() for each in self._running.values())

    def silent(self):
        """Returns the names of the hosts that have not shown yet that they can run easyddl."""
        return [name for name, each in self._running.items() if not each.host_id()]

    def problems_of(self, names):
        """Returns sentences about the hosts on which no rank can start.

        Args:
            names: List of strings. The hosts.
        """
        return " ".join(filter(None, (each.problem() for each in self._of(names))))

    def findings(self, names, reported):
        """Returns sentences about all findings on hosts. It may look up the hosts' names.

        Args:
            names: List of strings. The hosts.
            reported: Dictionary from the names of the other hosts to their ids.
        """
        found = [each.finding() for each in self._of(names)]
        return " ".join(filter(None, [self._one_host(names, reported), *found]))

    def _one_host(self, names, reported):
        """Returns a sentence about names that lead to one host. A launcher may fail by them."""
        told = {each.host: each.host_id() for each in self._of(names)}
        told = {name: host for name, host in told.items() if host}
        return granted_hosts.text_of_one_host(reported | told)

    def _of(self, names):
        return [self._running[name] for name in names if name in self._running]

    def end(self):
        """Ends all inspections."""
        for each in self._running.values():
            each.end()


def _script(addresses):
    """Returns the script for the shell of a host.

    Each step prints its name before the next step begins.
    """
    mark = f"echo {host_check.MARK}"
    # Python may need these to find easyddl. Most launchers pass on all variables.
    settings = [
        f"{name}={value}"
        for name, value in os.environ.items()
        if name == "PATH" or name.startswith(("LD_", "PYTHON"))
    ]
    check = [*command_process.python(host_check.__name__), socket.gethostname(), *addresses]
    return "; ".join(
        (
            f"{mark} {host_check.LOGIN}",
            f"cd {shlex.quote(os.getcwd())} || exit 1",
            f"{mark} {host_check.DIRECTORY}",
            f"[ -x {shlex.quote(sys.executable)} ] || exit 1",
            f"{mark} {host_check.PYTHON}",
            f"exec {shlex.join(['env', *settings, *check])}",
        )
    )


class _Inspection:
    """The inspection of one host.

    Args:
        host: String. Its name.
        command: List of strings.

    Attributes:
        host: The argument.
    """

    def __init__(self, host, command):
        self.host = host
        self._shell = command[0]
        self._error = None  # why the program could not be started
        own = os.getpid()
        try:
            self._program = BackgroundProgram(
                command, preexec_fn=lambda: process_tree.die_with_parent(own)
            )
        except OSError as error:
            self._program, self._error = None, str(error)

    def has_ended(self):
        """Returns whether the inspection has ended."""
        return self._program is None or self._program.has_ended()

    def problem(self):
        """Returns why no rank can start here, as a sentence; empty if nothing is wrong for sure."""
        done, reason = self._read()
        if not done or done[-1] in (host_check.EASYDDL, host_check.REACHED, host_check.NAMED):
            return ""
        # ssh exits with status 255 when it has lost its connection.
        if not self.has_ended() or not 0 < self._program.status < 128:
            return ""
        return _problem_after(done[-1], self.host, f" ({reason})" if reason else "")

    def host_id(self):
        """Returns the id that the host has told; empty before."""
        told = [line for line in self._lines() if line.startswith(host_check.HOST)]
        return told[0].removeprefix(host_check.HOST).strip() if told else ""

    def finding(self):
        """Returns a sentence about what was found; empty if nothing is wrong with the host."""
        done, reason = self._read()
        ended = self.has_ended()
        if not done:
            # The name may be one that only the program knows, as from the configuration of ssh.
            unknown = missing.lookup_error(self.host)
            asked = f"This host cannot look up {unknown}: is the name right? " if unknown else ""
            return asked + self._no_login(reason, ended)
        if done[-1] == host_check.EASYDDL and ended:
            return (
                f"Host {self.host} cannot reach `easyddl run` on this host ({reason}). A firewall "
                "may be between them. `--nic` chooses the network."
            )
        if done[-1] == host_check.REACHED and ended:
            return (
                f"Host {self.host} {reason}. `mpirun` may need the name. With `--nic`, it uses an "
                "address."
            )
        if not ended:
            return f"Host {self.host} is slow: its inspection has not ended."
        return self.problem()

    def _no_login(self, reason, ended):
        program = f"`{os.path.basename(self._shell)} {self.host}`"
        if not ended:
            return f"{program} has not answered. `easyddl doctor` examines the hosts."
        return (
            f"{program} has failed: {reason.rstrip('.') or 'it printed nothing'}. It must work "
            "without a question. `easyddl doctor` examines the hosts."
        )

    def _read(self):
        """Returns the steps that have succeeded, and the last other line that was printed."""
        lines = self._lines()
        marked = [line for line in lines if line.startswith(host_check.MARK)]
        others = [line.strip() for line in lines if not line.startswith(_NOT_A_REASON)]
        others = [line for line in others if line]
        return [line.rpartition(" ")[2] for line in marked], others[-1] if others else ""

    def _lines(self):
        if self._program is None:
            return [self._error]
        return self._program.output(_MOST_BYTES).splitlines()

    def end(self):
        """Ends the inspection."""
        if self._program is not None:
            self._program.kill()
            self._program.close()


def _problem_after(last, host, told):
    """Returns a sentence about why no rank can start, by the last step that has succeeded."""
    if last == host_check.LOGIN:
        return (
            f"Host {host} cannot use the directory {os.getcwd()}, in which the job was started"
            f"{told}. Start the job in a directory that all hosts have."
        )
    if last == host_check.DIRECTORY:
        return (
            f"Host {host} has no Python at {sys.executable}. Python and easyddl must be in the "
            "same place on all hosts."
        )
    return (
        f"Host {host} cannot load easyddl by {sys.executable}{told}. Python and easyddl must be in "
        "the same place on all hosts."
    )
