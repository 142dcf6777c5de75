"""Times what easyddl costs where there is nothing to share: in a world of one, and on import.

    python tests/benchmarks/alone.py
    python tests/benchmarks/alone.py --rounds 1

A tiny model takes steps with easyddl's callbacks and without, in turns; shown is the difference
of the median steps. And processes import Keras, and Keras and easyddl, in turns.
"""

import argparse
import statistics
import subprocess
import sys
import time

STEPS = 2000


def step_seconds(model, x, first=(), last=()):
    """The median step of a fit, without its first steps, in which TensorFlow traces."""
    import keras
    import numpy as np

    ends = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs=None: ends.append(time.perf_counter())
    )
    callbacks = [*first, clock, *last]
    model.fit(x, x, batch_size=1, verbose=0, shuffle=False, callbacks=callbacks)
    return float(np.median(np.diff(ends[10:])))


def build(keras):
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(4)])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model


def cost_of_a_step(rounds):
    import keras
    import numpy as np

    import easyddl as ddl

    plain, together = build(keras), build(keras)
    x = np.zeros((STEPS, 4), np.float32)
    found = {"plain": [], "easyddl": []}
    for _ in range(rounds):
        found["plain"].append(step_seconds(plain, x))
        hooks = [ddl.DDLCallback()], [ddl.DDLGlobalVariablesCallback()]
        found["easyddl"].append(step_seconds(together, x, *hooks))
    return found


def import_seconds(line):
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", line], check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def cost_of_import(rounds):
    found = {"import keras": [], "import keras, easyddl": []}
    for _ in range(rounds):
        for line, times in found.items():
            times.append(import_seconds(line))
    return found


def show(found, unit, scale):
    medians = [statistics.median(times) * scale for times in found.values()]
    for (name, times), each in zip(found.items(), medians, strict=True):
        listed = " ".join(f"{seconds * scale:.0f}" for seconds in times)
        print(f"{name:22} median {each:6.0f} {unit}   of {listed}")
    print(f"easyddl adds {medians[1] - medians[0]:.0f} {unit}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    show(cost_of_import(options.rounds), "ms", 1e3)
    show(cost_of_a_step(options.rounds), "us a step", 1e6)


if __name__ == "__main__":
    main()
