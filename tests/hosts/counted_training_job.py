"""A training whose weights count how often each sample was used: `counted_training_job.py FOLDER`.

It saves backups to FOLDER/backup and takes some seconds, in which a test can take a host from it.
At the end rank 0 writes the numbers to FOLDER/uses.json.
"""

import json
import os
import pathlib
import sys
import time

import keras
import numpy as np
from counting_model import counting_model, uses_of

import easyddl as ddl

SAMPLES, EPOCHS = 241, 3


class Pause(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.1)


def main(folder):
    ddl.init()
    print(
        f"rank {ddl.rank()} of {ddl.size()} on {os.uname().nodename} in start "
        f"{os.environ['EASYDDL_START']} is process {os.getpid()}",
        flush=True,
    )
    keras.utils.set_random_seed(3)
    x, y = ddl.split_data(
        np.eye(SAMPLES, dtype="float32"), np.zeros(SAMPLES, "float32"), remainder="keep"
    )
    model = counting_model(SAMPLES)
    backup = ddl.BackupAndRestore(folder / "backup", save_freq=3, rescale="none")
    callbacks = [ddl.DDLCallback(), backup, Pause(), ddl.DDLGlobalVariablesCallback()]
    model.fit(x, y, batch_size=3, epochs=EPOCHS, verbose=0, callbacks=callbacks)
    if ddl.is_root():
        (folder / "uses.json").write_text(json.dumps(uses_of(model)))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
