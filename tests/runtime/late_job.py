"""A job in which one rank comes late, in the ways that the command line says, one after the other.

Usage: late_job.py HOW,VICTIM,SECONDS ...
"""

import os
import signal
import subprocess
import sys
import time

import keras
import numpy as np

import easyddl as ddl


def be_elsewhere(seconds):
    time.sleep(seconds)


def sleep_in_the_script(seconds):
    be_elsewhere(seconds)


def stop(seconds):
    # Another process continues this one: nothing of it runs meanwhile.
    pid = os.getpid()
    subprocess.Popen(["/bin/sh", "-c", f"sleep {seconds}; kill -CONT {pid}"])
    os.kill(pid, signal.SIGSTOP)


def stop_all(seconds):
    """Stops the whole job, as a scheduler that suspends it. Then this rank is late for a while."""
    pids = " ".join(map(str, PIDS))
    # The other ranks wait for this one by then.
    line = f"sleep 1; kill -STOP {pids}; sleep {seconds}; kill -CONT {pids}"
    subprocess.Popen(["/bin/sh", "-c", line], start_new_session=True)
    for _ in range(40):  # one long sleep would end while the job is stopped
        time.sleep(0.1)


def go_another_way(seconds):
    ddl.broadcast_object("something that the others do not call")


def save_for_long(seconds):
    pass  # the checkpoint that takes long is the victim's own: see `callbacks`


WAYS = (sleep_in_the_script, stop, stop_all, go_another_way, save_for_long)
HOW = {function.__name__: function for function in WAYS}
PIDS = ddl.allgather_object(os.getpid())


class Late(keras.callbacks.Callback):
    def __init__(self, how, seconds):
        super().__init__()
        self.how, self.seconds = how, seconds

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            HOW[self.how](self.seconds)


class SlowCheckpoint(keras.callbacks.ModelCheckpoint):
    def __init__(self, seconds):
        super().__init__(os.devnull + ".keras")
        self.seconds = seconds

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(self.seconds)


def callbacks(how, is_victim, seconds):
    first, last = ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()
    if how == "save_for_long":  # the root's alone
        return [first, SlowCheckpoint(seconds), last]
    return [first, *([Late(how, seconds)] if is_victim else []), last]


def train(how, victim, seconds):
    is_victim = ddl.rank() == int(victim)
    x = np.random.default_rng(ddl.rank()).standard_normal((80, 6)).astype("float32")
    model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(6)])
    model.compile("sgd", "mse")
    model.fit(x, x, batch_size=8, verbose=0, callbacks=callbacks(how, is_victim, float(seconds)))
    print(f"rank {ddl.rank()} has trained", flush=True)


def main():
    for each in sys.argv[1:]:
        how, victim, seconds = each.split(",")
        if ddl.rank() == 0:
            print(f"begin {how}", flush=True)
        ddl.barrier()
        train(how, victim, seconds)
        ddl.barrier()
        time.sleep(
            0.5
        )  # the launcher passes on what ranks have printed, before the next one begins


if __name__ == "__main__":
    main()
