"""A job in which one rank comes late, in the way that the command line says.

Usage: late_job.py HOW VICTIM SECONDS
"""

import os
import signal
import subprocess
import sys
import time

import keras
import numpy as np

import easyddl as ddl

SECONDS = float(sys.argv[3])


def be_elsewhere():
    time.sleep(SECONDS)


def sleep_in_the_script():
    be_elsewhere()


def stop():
    # Another process continues this one: nothing of it runs meanwhile.
    pid = os.getpid()
    subprocess.Popen(["/bin/sh", "-c", f"sleep {SECONDS}; kill -CONT {pid}"])
    os.kill(pid, signal.SIGSTOP)


def go_another_way():
    ddl.broadcast_object("something that the others do not call")


def save_for_long():
    pass  # the checkpoint that takes long is the victim's own: see `callbacks`


HOW = {f.__name__: f for f in (sleep_in_the_script, stop, go_another_way, save_for_long)}


class Late(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            HOW[sys.argv[1]]()


class SlowCheckpoint(keras.callbacks.ModelCheckpoint):
    def on_epoch_end(self, epoch, logs=None):
        time.sleep(SECONDS)


def callbacks(is_victim):
    first, last = ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()
    if sys.argv[1] == "save_for_long":  # the root's alone
        return [first, SlowCheckpoint(os.devnull + ".keras"), last]
    return [first, *([Late()] if is_victim else []), last]


def main():
    is_victim = ddl.rank() == int(sys.argv[2])
    x = np.random.default_rng(ddl.rank()).standard_normal((80, 6)).astype("float32")
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(6)])
    model.compile("sgd", "mse")
    model.fit(x, x, batch_size=8, verbose=0, callbacks=callbacks(is_victim))
    print(f"rank {ddl.rank()} has trained", flush=True)


if __name__ == "__main__":
    main()
