"""A script for `easyddl scaling`, which notes in a folder what it does.

Usage: scaling_job.py FOLDER SAMPLES EPOCHS [STEPS_PER_EXECUTION [READING]]

With READING, each batch takes so many seconds to read, and no callback needs the end of a step:
Keras then calls all of them in other threads, where one of them takes long.
"""

import pathlib
import sys
import time

import keras
import numpy as np

import easyddl as ddl

BATCH = 8


class Notes(keras.callbacks.Callback):
    """Notes how many steps this rank has ended."""

    steps = 0

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        (folder / f"steps-{ddl.size()}-{ddl.rank()}").write_text(str(self.steps))


class Deferred(keras.callbacks.Callback):
    """Occupies the threads in which Keras calls the callbacks at the ends of steps."""

    async_safe = True

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(20 * reading)


class SlowBatches(keras.utils.PyDataset):
    def __len__(self):
        return len(x) // BATCH

    def __getitem__(self, index):
        time.sleep(reading)
        rows = slice(BATCH * index, BATCH * (index + 1))
        return x[rows], y[rows]


folder, (samples, epochs) = pathlib.Path(sys.argv[1]), map(int, sys.argv[2:4])
x = np.random.default_rng(0).normal(size=(samples, 6)).astype("float32")
x, y = ddl.split_data(x, x.sum(axis=1), remainder="keep")
model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(9), keras.layers.Dense(1)])
model.compile("sgd", "mse", steps_per_execution=int((sys.argv[4:] or [1])[0]))
callbacks = [
    ddl.DDLCallback(),
    Notes(),
    keras.callbacks.CSVLogger(folder / "log.csv"),
    ddl.RankZero(keras.callbacks.CSVLogger(folder / "wrapped.csv")),
    ddl.BackupAndRestore(folder / "backup", save_freq=2),
    ddl.DDLGlobalVariablesCallback(),
]
data, size = {"x": x, "y": y}, {"batch_size": BATCH}
reading = float(sys.argv[5]) if sys.argv[5:] else 0.0
if reading:
    data, size = {"x": SlowBatches()}, {}
    callbacks[1:-1] = [Deferred()]
try:
    model.fit(**data, **size, epochs=epochs, verbose=2, callbacks=callbacks)
except Exception:
    (folder / "caught").touch()
(folder / f"went on-{ddl.size()}").touch()
