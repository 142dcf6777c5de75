"""Times easyddl's allreduce beside MPI_Allreduce of the same MPI, in one run.

    mpirun -np 2 python tests/benchmarks/allreduce.py
    mpirun -np 8 python tests/benchmarks/allreduce.py --busy

Both write into memory that is there already, as MPI_Allreduce does; both are called from
Python, through pybind11 and mpi4py. Rounds of the two alternate. A round's time is that of its
slowest rank; the table holds medians over the rounds, and the ratio of these.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

import numpy as np

from easyddl import world

ROUND_SECONDS = 0.05
BURN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1 << 10, 1 << 16, 1 << 22, 10**8],
                        metavar="BYTES", help="of float32 data")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--busy", action="store_true", help="keep every core busy meanwhile")
    return parser.parse_args()


def measure(comm, function, calls):
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return comm.allreduce((time.perf_counter() - start) / calls, op=MAX)


def calls_in_a_round(comm, function):
    """As many as take some time slices, so that each of the two pays for its own waiting."""
    measure(comm, function, 3)  # warm up
    return max(1, min(1000, int(ROUND_SECONDS / measure(comm, function, 10))))


def compare(comm, size, rounds):
    """The medians of both, in seconds."""
    data = np.random.default_rng(comm.rank).random(size // 4, np.float32)
    ours, theirs = np.zeros_like(data), np.zeros_like(data)
    engine = world.engine()
    signature = engine.core.Signature(f"a benchmark with {size} bytes")
    inputs, outputs = [data.view(np.uint8)], [ours.view(np.uint8)]

    def easyddl():
        engine.channel.allreduce(inputs, outputs, "float32", "sum", signature)

    def mpi():
        comm.Allreduce(data, theirs)

    times = {easyddl: [], mpi: []}
    calls = {function: calls_in_a_round(comm, function) for function in times}
    for _ in range(rounds):
        for function, found in times.items():
            found.append(measure(comm, function, calls[function]))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    return [statistics.median(found) for found in times.values()]


def main():
    options = parse()
    comm = MPI.COMM_WORLD.Dup()
    burners = []
    if options.busy and comm.rank == 0:
        cores = len(os.sched_getaffinity(0))
        burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(cores)]
    try:
        if comm.rank == 0:
            version = MPI.Get_library_version().strip("\0 \n").splitlines()[0][:40]
            load = "every core busy" if options.busy else "quiet"
            print(f"{comm.size} ranks, {os.cpu_count()} cores, {load}, {version}")
            print(f"{'bytes':>12} {'easyddl us':>12} {'MPI us':>12} {'MPI/easyddl':>12}")
        for size in options.sizes:
            ours, theirs = compare(comm, size, options.rounds)
            if comm.rank == 0:
                ratio = theirs / ours
                print(f"{size:>12} {ours * 1e6:>12.1f} {theirs * 1e6:>12.1f} {ratio:>12.2f}",
                      flush=True)  # fmt: skip
    finally:
        for burner in burners:
            burner.kill()


world.init()
from mpi4py import MPI  # noqa: E402 - after easyddl has started it

MAX = MPI.MAX

if __name__ == "__main__":
    main()
