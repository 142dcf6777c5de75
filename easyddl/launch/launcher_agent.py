"""The program that a launcher runs on each host to start its ranks."""

import contextlib
import os
import signal
import time

from easyddl.runtime import launchers, processes

_BY_ITSELF = 1.0  # seconds in which it may end by itself


def end(process):
    """Ends the agent of a launcher whose host cannot be reached: Open MPI's would wait for it.

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
    try:
        name = processes.read(process).name
    except OSError:
        return False
    return any(each.is_mpirun and name in each.agents for each in launchers.LAUNCHERS)
