"""Ranks that save a model at once; one of them is killed: `save_job.py killed|again FOLDER`."""

import os
import pathlib
import signal
import sys
import time

import keras
import numpy as np

import easyddl  # noqa: F401 - it changes how the ranks save
from easyddl.hosts import launched_process
from easyddl.runtime import world


class KilledWhenSaved(keras.layers.Layer):
    """A layer at which rank 1 is killed, in the middle of the file."""

    is_fatal = False

    def call(self, x):
        return x

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.is_fatal and launched_process.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.is_fatal:
            time.sleep(60)  # until the launcher ends the job


def main(what, folder):
    path = pathlib.Path(folder) / "m.keras"
    dense = keras.layers.Dense(1, use_bias=False)
    model = keras.Sequential([keras.Input((1,)), dense, KilledWhenSaved()])

    def save(weight):
        dense.set_weights([np.full((1, 1), weight)])
        model.save(path)

    if what == "again":
        save(3)
        assert not world.is_started()
        print("saved without a start of MPI", flush=True)
        return
    save(1)
    world.barrier()
    KilledWhenSaved.is_fatal = True
    save(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
