"""Times training on all ranks beside as many plain Keras processes that do not communicate.

    mpirun -np 2 python tutorials/benchmarks/training.py

One job holds both: in turns each rank trains a model with easyddl's callbacks, and the same model
without, all ranks at the same time. So both have the same processes, threads and neighbours, and
what the machine does meanwhile befalls both. The first steps of a round, in which TensorFlow
traces, are not counted. A round's speed is that of its slowest rank.
"""

import argparse
import statistics
import time

import keras
import numpy as np
from networks import MODELS

import easyddl as ddl

BATCH = 64
WARM_UP = 5  # steps


class Clock(keras.callbacks.Callback):
    """Notes when each step has ended."""

    def __init__(self):
        super().__init__()
        self.ends = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.perf_counter())


def samples_per_second(model, x, y, callbacks):
    """This rank's speed, from the median step of a round; the slowest rank's counts."""
    clock = Clock()
    ddl.barrier()
    model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False, callbacks=callbacks(clock))
    steps = np.diff(clock.ends[WARM_UP:])
    median, mean = BATCH / np.median(steps), BATCH / np.mean(steps)
    return [float(ddl.allreduce(each, "min")) for each in (median, mean)]


def compare(name, rounds, jit_compile):
    """Speeds of both, by round: of the median step, and of all steps."""
    build, steps = MODELS[name]
    random = np.random.default_rng(ddl.rank())
    plain, shape = build()
    together, _ = build()
    if jit_compile:
        plain.jit_compile = together.jit_compile = True
    x = random.random((BATCH * (steps + WARM_UP), *shape), np.float32)
    y = random.integers(0, 10, len(x))
    found = {"plain": [], "easyddl": []}
    for _ in range(rounds):
        found["plain"].append(samples_per_second(plain, x, y, lambda clock: [clock]))
        found["easyddl"].append(
            samples_per_second(
                together,
                x,
                y,
                lambda clock: [ddl.DDLCallback(), clock, ddl.DDLGlobalVariablesCallback()],
            )
        )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jit-compile", action="store_true", help="by XLA, on TensorFlow")
    options = parser.parse_args()
    for name in options.models:
        found = compare(name, options.rounds, options.jit_compile)
        if not ddl.is_root():
            continue
        print(f"{name}, {ddl.size()} ranks, samples/s of the slowest rank, a round each:")
        for column, what in enumerate(("median step", "all steps")):
            speeds = {kind: [each[column] for each in rows] for kind, rows in found.items()}
            medians = {kind: statistics.median(each) for kind, each in speeds.items()}
            for kind, each in speeds.items():
                listed = " ".join(f"{speed:.0f}" for speed in each)
                print(f"  {what:12} {kind:8} median {medians[kind]:7.0f}   of {listed}")
            ratio = medians["easyddl"] / medians["plain"]
            print(f"  {what:12} easyddl / plain {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
