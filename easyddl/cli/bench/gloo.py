"""Times the allreduce of gloo, through torch.distributed."""

import datetime
import importlib
import importlib.util
import socket
import time

import numpy as np

from easyddl.cli.bench import object_collectives
from easyddl.runtime import world

_TIMEOUT = datetime.timedelta(seconds=60)


def connect():
    """Connects all ranks with gloo. Collective.

    Returns:
        Tuple of a `Gloo` and `None`; or of `None` and the reason why gloo cannot be used. All ranks
        get the same kind of result.
    """
    if not all(object_collectives.allgather(importlib.util.find_spec("torch") is not None)):
        return None, "torch is not installed"
    try:
        distributed = _together(_import)
        server = _together(_serve, distributed)
        address = object_collectives.broadcast(server and (server.host, server.port))
        return _together(_join, distributed, server, address), None
    except RuntimeError as error:
        return None, str(error)


def _together(step, *arguments):
    """Calls `step` on all ranks, and raises an error on all ranks if it fails on any."""
    result = problem = None
    try:
        result = step(*arguments)
    except (
        Exception
    ) as error:  # any failure of torch or of the network: the ranks continue without gloo
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
    problems = object_collectives.allgather(problem)
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
    """Starts the server on rank 0 through which the ranks find each other."""
    names = object_collectives.allgather(socket.gethostname())
    if not world.is_root():
        return None
    # A container's own host name may not be resolvable.
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
    """The connections of gloo between all ranks.

    Args:
        distributed: The module `torch.distributed`, initialised.
    """

    def __init__(self, distributed):
        self._distributed = distributed
        self._from_numpy = importlib.import_module("torch").from_numpy

    def time(self, data, result, calls):
        """Sums `data` over all ranks into `result`, `calls` times. Collective.

        gloo works in place only, so the time includes a copy of the data. NumPy makes this copy,
        because torch's threads would continue to spin for a while and disturb the next measurement.

        Args:
            data: NumPy array. The input of this rank.
            result: NumPy array of the same shape and dtype. Receives the sum.
            calls: Integer. The number of calls.

        Returns:
            Float. The time of a call on this rank, in seconds.
        """
        tensor = self._from_numpy(result)
        world.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            np.copyto(result, data)
            self._distributed.all_reduce(tensor)
        return (time.perf_counter() - start) / calls

    def close(self):
        """Closes this rank's connections."""
        self._distributed.destroy_process_group()
