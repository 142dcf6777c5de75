"""A training that a signal ends midway, and one that goes on after it.

`preemption_job.py stopped|again FOLDER SAVE_FREQ WHO`: in the second epoch, rank WHO sends itself
SIGTERM; with `test` it comes from elsewhere, and with `twice` it comes twice.

`preemption_job.py notified FOLDER SAVE_FREQ test`: the same with SIGUSR1.

`preemption_job.py stopped|notified FOLDER SAVE_FREQ test WORKERS`: such workers make the batches.

`preemption_job.py requeued FOLDER SAVE_FREQ`: is started again and again until it has ended.
"""

import json
import os
import pathlib
import signal
import sys
import time

import keras
import numpy as np

import easyddl as ddl

RANK = ddl.rank() if __name__ == "__main__" else None  # spawned workers import this file
EPOCHS, STEPS, BATCH = 3, 6, 4


class Signal(keras.callbacks.Callback):
    """Has this process receive SIGTERM in the middle of the second epoch."""

    def __init__(self, folder, who):
        super().__init__()
        self.folder, self.who = folder, who

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.epoch != 1:
            return
        if batch == 1 and self.who in (str(RANK), "twice"):
            os.kill(os.getpid(), signal.SIGTERM)
        if batch == 1 and self.who == "twice":
            time.sleep(3.5)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        if self.who == "test":
            (self.folder / f"ready-{RANK}").touch()
            time.sleep(0.5)


class Sequence(keras.utils.PyDataset):
    """Batches that threads or processes make."""

    def __init__(self, x, processes):
        super().__init__(workers=2, use_multiprocessing=processes, max_queue_size=2)
        self.x = x

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        x = self.x[BATCH * index : BATCH * (index + 1)]
        return x, x.sum(1)


def batches(x, workers):
    """The arguments of `fit` for data that workers make, or that are in memory without any."""
    if workers == "none":
        return {"x": x, "y": x.sum(1), "batch_size": BATCH}
    if workers in ("threads", "processes"):
        return {"x": Sequence(x, workers == "processes")}
    import torch
    from torch.utils import data

    x = torch.as_tensor(x)
    how = {"num_workers": 2, "multiprocessing_context": workers}
    how["persistent_workers"] = workers == "spawn"  # their imports take long
    return {"x": data.DataLoader(data.TensorDataset(x, x.sum(1)), BATCH, **how)}


def train(folder, save_freq, seed, *callbacks, workers="none"):
    keras.utils.set_random_seed(seed + RANK)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, "tanh"),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(1),
        ]
    )
    model.compile("adam", "mse", metrics=["mae"])
    numbers = np.random.default_rng(RANK)
    x = numbers.standard_normal((BATCH * STEPS, 6)).astype("float32")
    history = model.fit(
        **batches(x, workers),
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        validation_data=(x, x.sum(1)),
        callbacks=[
            ddl.DDLCallback(),
            *callbacks,
            ddl.BackupAndRestore(folder, save_freq=save_freq, signals=("SIGTERM", "SIGUSR1")),
            ddl.DDLGlobalVariablesCallback(),
        ],
    )
    return model, history


def stopped(folder, save_freq, who, workers="none", number=signal.SIGTERM):
    before = signal.getsignal(number)
    try:
        train(folder / "backup", save_freq, 1, Signal(folder, who), workers=workers)
    except SystemExit as end:
        assert end.code == 128 + number, end.code
        assert signal.getsignal(number) == before
        raise
    raise AssertionError("the training went on to its end")


def again(folder, save_freq):
    """Goes on where the job was stopped, and trains once more without a break."""
    state = json.loads(next((folder / "backup").glob("backup-*/state.json")).read_text())
    resumed, history = train(folder / "backup", save_freq, 50)
    whole, uninterrupted = train(folder / "other", save_freq, 1)
    assert state["epoch"] == 1 and 2 <= state["batch"] <= STEPS, state
    assert history.epoch == [1, 2], history.epoch
    ours = [*resumed.weights, *resumed.optimizer.variables]
    theirs = [*whole.weights, *whole.optimizer.variables]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.numpy().tobytes() == other.numpy().tobytes(), mine.path
    for name, values in uninterrupted.history.items():
        assert history.history[name] == values[1:], name
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    print(f"rank {RANK}: the same bits, from step {state['batch']} on", flush=True)


if __name__ == "__main__":
    what, where, frequency, *rest = sys.argv[1:]
    where, frequency = pathlib.Path(where), frequency if frequency == "epoch" else int(frequency)
    if what == "stopped":
        stopped(where, frequency, *rest)
    elif what == "notified":
        stopped(where, frequency, *rest, number=signal.SIGUSR1)
    elif what == "requeued" and not any(where.glob("backup/backup-*")):
        stopped(where, frequency, "test")
    else:
        again(where, frequency)
