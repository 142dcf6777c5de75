"""Starts the agents, each with a separate `easyddl run`, and an MPI job.

If one job started all agents, a host that cannot be reached would end the agents on all hosts.
Therefore the agents are no ranks of `easyddl.Ranks`. These are one job, all of them run the same
function at the same time, and they need cloudpickle, which an examined host may lack.
"""

import os
import re
import time

from easyddl.doctor.agent import TOKEN
from easyddl.hosts import launched_process
from easyddl.launch.start import command_line
from easyddl.machine import processes
from easyddl.machine.background_program import BackgroundProgram
from easyddl.runtime import command_process, deadlines

_AGENT = command_process.python("easyddl.doctor.agent")
_MPI_JOB = command_process.python("easyddl.doctor.mpi_job")
_GRACE = 5  # seconds between asking a program to end and killing it
# Lines in which MPICH's mpirun prints source locations of errors.
_NOISE = re.compile(r"\[(mpiexec|proxy)[@:]")
_LAST_LINES, _LAST_BYTES = 4, 1 << 14


class Program(BackgroundProgram):
    """A program of an examination, which ends it.

    Args:
        command: List of strings.
        token: String. The secret of this examination, which agents get from their environment.
    """

    def __init__(self, command, token=""):
        # `easyddl run` replaces this address in the agents that it starts.
        env = {**os.environ, TOKEN: token, launched_process.RUN_ADDRESS: "127.0.0.1"}
        # In "/" Python does not import easyddl from the current directory.
        super().__init__(command, env=env, cwd="/")

    def reason(self):
        """Returns the last lines that the program printed."""
        lines = [line.strip() for line in self.output(_LAST_BYTES).splitlines()]
        lines = [line for line in lines if line and not _NOISE.match(line)]
        status = self.status
        ending = "printed nothing" if status is None else processes.end_of(status)
        return " | ".join(lines[-_LAST_LINES:]) or f"it {ending}"


def end_all(programs):
    """Ends programs. Call it when the connections to the agents are closed, which ends these.

    Args:
        programs: Iterable of `Program`.
    """
    programs = list(programs)
    for program in programs:
        program.ask_to_end()
    deadline = time.monotonic() + _GRACE
    for program in programs:
        program.end_within(max(0.0, deadline - time.monotonic()))
        program.close()


def agent_command(host, coordinator):
    """Returns the command that runs an agent.

    Args:
        host: String. The name under which the agent reports.
        coordinator: `Coordinator`.

    Returns:
        List of strings.
    """
    return [*_AGENT, "--host", host, "--port", str(coordinator.port)]


def agent(host, coordinator, options):
    """Starts an agent.

    Args:
        host: String.
        coordinator: `Coordinator`.
        options: Namespace. `launcher`, `rsh`, `nic` and `start_timeout`, as of `easyddl run`;
            `None` for this host, without a launcher.

    Returns:
        `Program`.
    """
    command = agent_command(host, coordinator)
    if options is not None:
        # An agent is no job, and a plan need not know the examined hosts.
        where = ["-np", "1", "-H", f"{host}:1", "--env", "EASYDDL_PLAN="]
        command = [*_easyddl_run(where, options), *command]
    return Program(command, coordinator.token)


def mpi_job(hosts, options):
    """Starts a small MPI job with one rank on each host.

    Args:
        hosts: List of strings; `None` for two ranks on this host.
        options: Namespace, as above.

    Returns:
        `Program`.
    """
    where = ["-H", ",".join(f"{host}:1" for host in hosts)] if hosts else ["-np", "2"]
    return Program([*_easyddl_run(where, options), *_MPI_JOB])


def _easyddl_run(where, options):
    command = [*command_process.python("easyddl"), "run", "--quiet", *where]
    command += ["--no-prefix", "--launcher", options.launcher]
    command += ["--rsh", command_line.absolute(options.rsh)] if options.rsh else []
    command += ["--nic", options.nic] if options.nic else []
    # `easyddl run` knows best why a host cannot be reached, so it must give up before we do.
    return [*command, "--start-timeout", str(deadlines.earlier(options.start_timeout)), "--"]
