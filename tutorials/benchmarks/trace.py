"""Counts what the timeline costs: off, a step; on, an event.

    mpirun -np 2 python tutorials/benchmarks/trace.py

Off, a step costs as many tests of a pointer as it has spans when it is on: those are counted in
real exchanges of gradients, and a test is timed over millions. On, an event costs two readings
of the clock and a line in the file, which is timed with the writing of the file. The table holds
the slowest rank's medians, and beside them the median times of the exchanges themselves.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time

import keras
import tensorflow as tf

from easyddl.reducer.gradient_reducer import GradientReducer
from easyddl.runtime import world

# Shorter than a time slice, so that most repeats are spared what else the machine does; longer
# than it takes to fill the buffer that goes to the file.
SPANS = {"off": 100_000, "on": 2_000}
REPEATS = 101


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**6, 10**7, 10**8],
                        metavar="BYTES", help="of gradients in a step")  # fmt: skip
    parser.add_argument("--steps", type=int, default=20)
    return parser.parse_args()


def seconds_a_span(comm, count):
    """The median of some repeats, on the slowest rank."""
    core = world.engine().core
    comm.Barrier()
    times = [core.time_spans(count) / count for _ in range(REPEATS)]
    return comm.allreduce(statistics.median(times), op=MAX)


class Exchange:
    """Gradients of so many bytes in ten equal parts."""

    def __init__(self, size):
        variables = [keras.Variable(tf.zeros(size // 40), name=f"v{i}") for i in range(10)]
        average = GradientReducer()

        @tf.function
        def step():
            return average.mean([tf.ones(size // 40) for _ in variables], variables)

        self._step = step
        step()

    def seconds(self, comm, steps):
        """The median time of a step, on the slowest rank."""
        times = []
        for _ in range(steps):
            comm.Barrier()
            start = time.perf_counter()
            self._step()
            times.append(time.perf_counter() - start)
        return comm.allreduce(statistics.median(times), op=MAX)


def start_timeline(folder, comm):
    path = pathlib.Path(folder, f"{comm.rank}.jsonl")
    engine = world.engine()
    engine.core.start_timeline(engine.world, os.open(path, os.O_WRONLY | os.O_CREAT))
    return path


def events(path):
    time.sleep(0.5)  # what is in a buffer goes to the file within that time
    with path.open() as file:
        return sum(line.startswith("[") for line in file)


def main():
    options = parse()
    comm = MPI.COMM_WORLD.Dup()
    exchanges = {size: Exchange(size) for size in options.sizes}
    off = seconds_a_span(comm, SPANS["off"])
    with tempfile.TemporaryDirectory() as folder:
        path = start_timeline(folder, comm)
        rows = []
        for size, exchange in exchanges.items():
            before = events(path)
            seconds = exchange.seconds(comm, options.steps)
            count = comm.allreduce((events(path) - before) / options.steps, op=MAX)
            rows.append((size, count, seconds))
        on = seconds_a_span(comm, SPANS["on"])
    if comm.rank > 0:
        return
    print(f"{comm.size} ranks, {os.cpu_count()} cores")
    print(f"off: {off * 1e9:.2f} ns a span; on: {on * 1e9:.0f} ns an event")
    print(f"{'bytes':>10} {'events':>8} {'off us':>8} {'on us':>8} {'step us':>9}")
    for size, count, seconds in rows:
        print(f"{size:>10} {count:>8.0f} {count * off * 1e6:>8.3f} {count * on * 1e6:>8.1f} "
              f"{seconds * 1e6:>9.0f}")  # fmt: skip


world.init()
from mpi4py import MPI  # noqa: E402 - after easyddl has started it

MAX = MPI.MAX

if __name__ == "__main__":
    main()
