"""Starts the agents, each by an `easyddl run` of its own, and a job of MPI.

With one job for all agents, a host that cannot be reached would end the agents on the others.
"""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from easyddl.doctor.agent import TOKEN
from easyddl.launch import command_line

_AGENT = [sys.executable, "-m", "easyddl.doctor.agent"]
_MPI_JOB = [sys.executable, "-m", "easyddl.doctor.mpi_job"]
_GRACE = 5  # seconds between asking a program to end and killing it
# Where in its source code MPICH's mpirun saw an error.
_NOISE = re.compile(r"\[(mpiexec|proxy)[@:]")
_LAST_LINES, _LAST_BYTES = 4, 1 << 14


@dataclasses.dataclass(frozen=True)
class StartOptions:
    """How programs are started on hosts.

    Attributes:
        launcher: String. As `easyddl run --launcher`.
        rsh: String, or `None`. The program that starts commands on a host.
        nic: String, or `None`. As `easyddl run --nic`.
        timeout: Number. The seconds after which a host counts as not reached.
    """

    launcher: str = "auto"
    rsh: str | None = None
    nic: str | None = None
    timeout: float = 30.0


class Program:
    """A program that runs in the background, and what it prints.

    Args:
        command: List of strings.
        token: String. The secret of this examination, which agents get by their environment.
    """

    def __init__(self, command, token=""):
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, TOKEN: token},
            cwd="/",  # Python would import easyddl from sources in the current directory
            start_new_session=True,  # Ctrl-C reaches the coordinator alone, which ends the rest
        )

    @property
    def status(self):
        """The exit status; `None` before the program has ended."""
        return self._program.poll()

    def has_ended(self):
        """Whether the program has ended, which an agent does not before the examination does."""
        return self.status is not None

    def reason(self):
        """The last lines that the program printed."""
        # `pread` leaves the position alone, which the program shares.
        size = os.fstat(self._output.fileno()).st_size
        last = os.pread(self._output.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES))
        lines = last.decode(errors="replace").splitlines()
        lines = [line.strip() for line in lines if line.strip() and not _NOISE.match(line)]
        ending = "it printed nothing" if self.status is None else f"exit status {self.status}"
        return " | ".join(lines[-_LAST_LINES:]) or ending

    def ask_to_end(self):
        """Sends SIGTERM, which `easyddl run` passes on to its ranks."""
        if not self.has_ended():
            self._program.send_signal(signal.SIGTERM)

    def kill(self):
        """Kills the program and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._program.pid, signal.SIGKILL)

    def end(self, deadline):
        """Waits for the end, and kills the program and its children at the deadline.

        Args:
            deadline: Number, of `time.monotonic()`.
        """
        try:
            self._program.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill()
            self._program.wait()
        self._output.close()


def end_all(programs):
    """Ends programs.

    Args:
        programs: Iterable of `Program`. The connections of their agents are closed, so that most
            have ended or are about to.
    """
    programs = list(programs)
    soon = time.monotonic() + 2
    while time.monotonic() < soon and not all(program.has_ended() for program in programs):
        time.sleep(0.02)
    for program in programs:
        program.ask_to_end()
    deadline = time.monotonic() + _GRACE
    for program in programs:
        program.end(deadline)


def agent_command(host, coordinator):
    """The command that runs an agent.

    Args:
        host: String. The name by which the agent reports.
        coordinator: `Coordinator`.

    Returns:
        List of strings.
    """
    where = ["--host", host, "--port", str(coordinator.port), *coordinator.addresses()]
    return [*_AGENT, *where]


def on_this_machine(host, coordinator):
    """Starts an agent here, without a launcher."""
    return Program(agent_command(host, coordinator), coordinator.token)


def on_host(host, coordinator, options):
    """Starts an agent on a host.

    Args:
        host: String.
        coordinator: `Coordinator`.
        options: `StartOptions`.

    Returns:
        `Program`.
    """
    command = _easyddl_run(["-np", "1", "-H", f"{host}:1"], options)
    return Program([*command, *agent_command(host, coordinator)], coordinator.token)


def mpi_job(hosts, options):
    """Starts a small job of MPI with a rank on each host.

    Args:
        hosts: List of strings; `None` for two ranks on this machine.
        options: `StartOptions`.

    Returns:
        `Program`.
    """
    where = ["-H", ",".join(f"{host}:1" for host in hosts)] if hosts else ["-np", "2"]
    return Program([*_easyddl_run(where, options), *_MPI_JOB])


def _easyddl_run(where, options):
    command = [sys.executable, "-m", "easyddl", "run", "--quiet", *where]
    command += ["--no-prefix", "--launcher", options.launcher]
    command += ["--rsh", command_line.absolute(options.rsh)] if options.rsh else []
    command += ["--nic", options.nic] if options.nic else []
    return [*command, "--start-timeout", str(options.timeout), "--"]
