"""Times gradients on GPUs beside NCCL's own allreduce.

    mpirun -np 4 python tutorials/benchmarks/nccl.py
    EASYDDL_GPU=hierarchical mpirun -np 4 python tutorials/benchmarks/nccl.py --sizes 1 16 256

Each rank takes the GPU of its place on the host. For each size, in MiB of float32, it prints the
least microseconds of some rounds, of NCCL's call and of an exchange from handing in to the end of
what waits for it, and their ratio. With `--share` all ranks of a host share one GPU, which says
how much an exchange costs beside NCCL there, and nothing of how fast either is.
"""

# ruff: noqa: E402

import argparse
import ctypes
import os
import pathlib
import sys
import time

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / "support"), str(TESTS / "gpu_stand_in")]
import engine_only  # noqa: F401  (before easyddl)
import numpy as np
from gpu_arrays import Array, Stream, take_gpu
from mpi4py import MPI

from easyddl.runtime import world

FLOAT32, SUM = 7, 0


class Id(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 128)]


class Nccl:
    """NCCL itself, the copy that the engine has opened."""

    def __init__(self, comm):
        versions = dict(world.engine().core.gpu_versions())
        self.version = versions["NCCL"]
        path = self.version[self.version.index("(") + 1 : -1]
        self._library = ctypes.CDLL(path)
        self._library.ncclCommInitRank.argtypes = [
            ctypes.c_void_p,
            ctypes.c_int,
            Id,
            ctypes.c_int,
        ]
        name = Id()
        if comm.rank == 0:
            self._call("ncclGetUniqueId", ctypes.byref(name))
        raw = comm.bcast(bytes(name))
        self._comm = ctypes.c_void_p()
        self._call(
            "ncclCommInitRank",
            ctypes.byref(self._comm),
            comm.size,
            Id.from_buffer_copy(raw),
            comm.rank,
        )

    def _call(self, name, *arguments):
        code = getattr(self._library, name)(*arguments)
        assert code == 0, f"{name}: {code}"

    def allreduce(self, array, stream):
        address, count = ctypes.c_size_t(array.address), ctypes.c_size_t(array.nbytes // 4)
        self._call(
            "ncclAllReduce", address, address, count, FLOAT32, SUM, self._comm, stream.handle
        )


def least_microseconds(comm, act, stream, rounds):
    times = []
    for _ in range(rounds):
        comm.Barrier()
        start = time.perf_counter()
        act()
        stream.synchronize()
        times.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
    return 1e6 * min(times[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--share", action="store_true")
    options = parser.parse_args()
    world.init()
    comm = MPI.COMM_WORLD.Dup()
    if options.share:
        os.environ["NCCL_HOSTID"] = f"rank {comm.rank}"
    take_gpu(0 if options.share else world.local_rank())
    stream, nccl, core = Stream(), Nccl(comm), world.engine().core
    if comm.rank == 0:
        print(f"{comm.size} ranks, NCCL {nccl.version}", flush=True)
        print(f"{'MiB':>8} {'NCCL us':>10} {'easyddl us':>10} {'ratio':>6}", flush=True)
    for size in options.sizes:
        array = Array(np.ones(int(size * 2**18), np.float32))
        buckets = [("float32", [array.nbytes])]
        model = core.Reducer(world.engine().reducer_group, "a benchmark", buckets)
        pieces = [(array.address, array.address, array.nbytes)]

        def exchange(model=model, pieces=pieces):
            model.submit_on_gpu(0, pieces, 1, 0, stream.number)

        theirs = least_microseconds(
            comm, lambda array=array: nccl.allreduce(array, stream), stream, options.rounds
        )
        ours = least_microseconds(comm, exchange, stream, options.rounds)
        if comm.rank == 0:
            print(f"{size:8g} {theirs:10.0f} {ours:10.0f} {ours / theirs:6.2f}", flush=True)
        model.close()
        array.free()


main()
