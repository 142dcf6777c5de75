"""The program that a launcher runs on each host to start its ranks."""

import contextlib
import os
import signal
import time

from easyddl.hosts import launched_process, launchers
from easyddl.machine import process_tree, processes

ENDED = b"e"  # what `watch` writes
_BY_ITSELF = 1.0  # seconds in which it may end by itself


def find():
    """Returns the process id of the agent that started this process; 0 if the agent has ended.

    The kernel gives the children of a process that has ended to another process, mostly to init. In
    a container the agent itself may have the id of init.
    """
    agent = os.getppid()
    is_init = agent == 1 and not any(name(1) in each.agents for each in launchers.LAUNCHERS)
    return 0 if is_init or launched_process.is_served_no_more() else agent


def watch(agent, descriptor):
    """Makes this process write `ENDED` and exit when the agent that started it ends.

    Args:
        agent: Integer. The id of the agent's process; 0 if it has ended already.
        descriptor: Integer. Where to write.
    """

    def end(*_):
        # The kernel also sends the signal when only the thread that forked this process ends.
        if os.getppid() != agent:
            os.write(descriptor, ENDED)
            os._exit(1)

    signal.signal(signal.SIGUSR2, end)
    process_tree.signal_at_end_of_parent(signal.SIGUSR2)
    end()  # it may have ended already


def name(agent):
    """Returns the name of an agent's program; empty if it has ended.

    Args:
        agent: Integer. The id of its process.
    """
    try:
        return processes.read(agent).name
    except OSError:
        return ""


def end(process):
    """Ends the agent of a launcher on an unreachable host, for which Open MPI would wait.

    Args:
        process: Integer. The id of the process that started this rank. Another program than an
            agent of mpirun, such as a scheduler's, is left alone.
    """
    limit = time.monotonic() + _BY_ITSELF
    while _is_agent(process):
        if time.monotonic() > limit:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            return
        time.sleep(0.05)


def _is_agent(process):
    program = name(process)
    return any(each.is_mpirun and program in each.agents for each in launchers.LAUNCHERS)
