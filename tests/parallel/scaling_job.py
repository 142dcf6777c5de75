"""A script for `easyddl scaling`, which notes in a folder what it does.

Usage: scaling_job.py FOLDER SAMPLES EPOCHS [STEPS_PER_EXECUTION]
"""

import pathlib
import sys

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
try:
    model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=2, callbacks=callbacks)
except Exception:
    (folder / "caught").touch()
(folder / f"went on-{ddl.size()}").touch()
