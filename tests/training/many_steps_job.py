"""Run under mpirun by test_many_steps.py: 10,000 steps, and what they leave behind.

Prints, on the root, a line of JSON: the largest growth on any rank between the first thousand
steps and the last.
"""

import json
import os
import pathlib

import keras
import numpy as np
from mpi4py import MPI

import easyddl as ddl

STEPS, EPOCHS, BATCH = 1000, 10, 2


def resources():
    """What this process holds."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    status = pathlib.Path("/proc/self/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {
        "resident_kib": int(resident.split()[1]),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "shared_memory": maps.count("memfd:easyddl"),
    }


class Watch(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(resources())


def main():
    random = np.random.default_rng(ddl.rank())
    x = random.standard_normal((STEPS * BATCH, 16)).astype("float32")
    model = keras.Sequential(
        [keras.layers.Input((16,)), keras.layers.Dense(64), keras.layers.Dense(16)]
    )
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    watch = Watch()
    callbacks = [ddl.DDLCallback(bucket_bytes=2000), watch, ddl.DDLGlobalVariablesCallback()]
    model.fit(x, x, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    assert int(model.optimizer.iterations.numpy()) == STEPS * EPOCHS
    growth = {name: watch.seen[-1][name] - watch.seen[0][name] for name in watch.seen[0]}
    everyones = MPI.COMM_WORLD.gather(growth)
    if ddl.is_root():
        print(json.dumps({name: max(each[name] for each in everyones) for name in growth}))


if __name__ == "__main__":
    main()
