"""The allreduce of torch.distributed's gloo, to be timed beside easyddl's."""

import datetime
import importlib
import importlib.util
import socket
import time

import numpy as np

from easyddl.collectives import objects
from easyddl.runtime import world

_TIMEOUT = datetime.timedelta(seconds=60)


def connect():
    """Connects all ranks by gloo. Collective.

    Returns:
        A `Gloo`, or `None`, and the reason why there is none. Both are there, or not, on all
        ranks.
    """
    if not all(objects.allgather_object(importlib.util.find_spec("torch") is not None)):
        return None, "torch is not installed"
    try:
        distributed = _together(_import)
        server = _together(_serve, distributed)
        address = objects.broadcast_object(server and (server.host, server.port))
        return _together(_join, distributed, server, address), None
    except RuntimeError as error:
        return None, str(error)


def _together(step, *arguments):
    """The result of a step that all ranks take; an error on all if it fails on any."""
    result = problem = None
    try:
        result = step(*arguments)
    except Exception as error:  # whatever torch or the network say: the ranks go on without gloo
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    problems = objects.allgather_object(problem)
    for rank, each in enumerate(problems):
        if each is not None:
            if isinstance(result, Gloo):
                result.close()
            raise RuntimeError(f"it cannot be started on rank {rank}: {each}")
    return result


def _import():
    distributed = importlib.import_module("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        raise RuntimeError("this torch was built without gloo")
    return distributed


def _serve(distributed):
    """Where the ranks find each other: a server on rank 0."""
    names = objects.allgather_object(socket.gethostname())
    if not world.is_root():
        return None
    # A container's own name need not lead anywhere.
    host = "127.0.0.1" if len(set(names)) == 1 else names[0]
    return _store(distributed, host, 0, is_master=True)


def _join(distributed, server, address):
    store = server or _store(distributed, *address, is_master=False)
    distributed.init_process_group(
        "gloo", store=store, rank=world.rank(), world_size=world.size(), timeout=_TIMEOUT
    )
    return Gloo(distributed)


def _store(distributed, host, port, is_master):
    return distributed.TCPStore(
        host,
        port,
        world.size(),
        is_master=is_master,
        timeout=_TIMEOUT,
        wait_for_workers=False,
    )


class Gloo:
    """All ranks, connected by gloo.

    Args:
        distributed: The module `torch.distributed`, initialised.
    """

    def __init__(self, distributed):
        self._distributed = distributed
        self._from_numpy = importlib.import_module("torch").from_numpy

    def time(self, data, result, calls):
        """Sums `data` over all ranks into `result`, `calls` times. Collective.

        gloo works in place alone, so the copy before it counts. NumPy makes it, because torch's
        threads would go on spinning for a while, beside what is timed next.

        Returns:
            The seconds that a call took on this rank.
        """
        tensor = self._from_numpy(result)
        world.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            np.copyto(result, data)
            self._distributed.all_reduce(tensor)
        return (time.perf_counter() - start) / calls

    def close(self):
        """Takes this rank's connections down."""
        self._distributed.destroy_process_group()
