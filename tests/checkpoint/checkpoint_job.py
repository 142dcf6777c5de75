"""A training that is killed, one that goes on after it, and one on fewer ranks.

`checkpoint_job.py killed|again FOLDER SAVE_FREQ [VICTIM]`, `checkpoint_job.py resized FOLDER`.
"""

import json
import os
import pathlib
import random
import signal
import sys
import threading
import time

import keras
import numpy as np

import easyddl as ddl

ddl.init()
import rest_of_epoch_job  # noqa: E402
from interrupted_fits import Interrupt  # noqa: E402
from mpi4py import MPI  # noqa: E402

RANK, SIZE = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
EPOCHS, STEPS, BATCH = 6, 5, 4
RATE, MOMENTUM, SAMPLES = 0.01, 0.9, 96


class Kill(keras.callbacks.Callback):
    """Kills this rank, without a word, at some moment after the first epochs."""

    def __init__(self, victim):
        super().__init__()
        self.is_victim = victim in ("all", str(RANK))

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and self.is_victim:
            seconds = random.SystemRandom().uniform(0, 0.5)
            print(f"rank {RANK} is killed after {seconds:.3f} s", flush=True)
            threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.04)  # so that it lives longer than that


def train(folder, save_freq, seed, *callbacks):
    keras.utils.set_random_seed(seed + RANK)
    layers = [keras.layers.Dense(64, "tanh"), keras.layers.BatchNormalization()]
    model = keras.Sequential(
        [keras.Input((6,)), *layers, keras.layers.Dropout(0.4), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")
    numbers = np.random.default_rng(RANK)
    x = numbers.standard_normal((BATCH * STEPS, 6)).astype("float32")
    backup = ddl.BackupAndRestore(folder, save_freq=save_freq)
    history = model.fit(
        x,
        x.sum(1),
        batch_size=BATCH,
        epochs=EPOCHS,
        verbose=0,
        callbacks=[ddl.DDLCallback(), *callbacks, backup, ddl.DDLGlobalVariablesCallback()],
    )
    return model, history.epoch


def again(folder, save_freq):
    """Goes on where the killed job was, and trains once more without a break."""
    resumed, left = train(folder / "backup", save_freq, 50)
    whole, _ = train(folder / "other", save_freq, 1)
    assert 0 < left[0] < EPOCHS and left[-1] == EPOCHS - 1, left
    for model in (resumed, whole):
        assert model.count_params() > 0
    ours = [*resumed.weights, *resumed.optimizer.variables]
    theirs = [*whole.weights, *whole.optimizer.variables]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.numpy().tobytes() == other.numpy().tobytes(), mine.path
    files = [path.name for path in folder.iterdir() if not path.name.startswith(".start-")]
    assert not files, files
    print(f"rank {RANK}: the same bits, from epoch {left[0]} on", flush=True)


def samples():
    numbers = np.random.default_rng(8)
    x = numbers.standard_normal((SAMPLES, 6)).astype("float32")
    return x, (x @ np.arange(6) + numbers.standard_normal(SAMPLES)).astype("float32")


def decay(steps):
    """A schedule for an epoch of so many steps."""
    return keras.optimizers.schedules.InverseTimeDecay(RATE, decay_steps=steps, decay_rate=0.5)


class Batches(keras.utils.PyDataset):
    """All samples, in batches, on rank 0; none on the others."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def __len__(self):
        return SAMPLES // self.size if RANK == 0 else 0

    def __getitem__(self, index):
        return tuple(each[index * self.size :][: self.size] for each in samples())


def on_the_root(size):
    batches = Batches(size)
    if keras.backend.backend() != "tensorflow":
        return batches
    import tensorflow as tf

    # Keras refuses a PyDataset without batches here.
    signature = (tf.TensorSpec((size, 6)), tf.TensorSpec((size,)))
    data = tf.data.Dataset.from_generator(
        lambda: (batches[i] for i in range(len(batches))), output_signature=signature
    )
    return data.apply(tf.data.experimental.assert_cardinality(len(batches)))


def resized(folder):
    """Trains for a while on 4 ranks, and to its end on 2: four ways to do it."""
    per_rank = {"doubled": 4 if SIZE == 4 else 8}
    found = {}
    for name in ("same", "doubled", "schedule", "on_the_root"):
        batch = per_rank.get(name, 4)
        steps = SAMPLES // (batch * SIZE)
        rate = ddl.scale_lr(decay(steps) if name == "schedule" else RATE)
        if name in ("doubled", "on_the_root"):
            rate = 4 * RATE
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        # What a new model holds, and its rate, must not matter on 2 ranks.
        model.layers[0].set_weights([np.full((6, 1), 1.0 if SIZE == 4 else 9.0), np.zeros(1)])
        model.compile(keras.optimizers.SGD(rate, momentum=MOMENTUM), "mse", metrics=["mae"])
        backup = ddl.BackupAndRestore(
            folder / name,
            save_freq=3 if name in ("schedule", "on_the_root") else "epoch",
            rescale="none" if name in ("doubled", "on_the_root") else "linear",
        )
        at = (1, 5) if name in ("schedule", "on_the_root") else (2, 1)
        interrupt = [Interrupt(*at)] if SIZE == 4 else []
        x, y = ddl.split_data(*samples())
        data = {"x": x, "y": y, "batch_size": batch}
        if name == "on_the_root" and SIZE == 2:
            data = {"x": on_the_root(4 * batch)}
        try:
            history = model.fit(
                **data,
                epochs=4,
                shuffle=False,
                verbose=0,
                callbacks=[ddl.DDLCallback(), backup, *interrupt, ddl.DDLGlobalVariablesCallback()],
            )
        except KeyError:
            assert SIZE == 4
            continue
        optimizer = model.optimizer
        found[name] = {
            "epochs": history.epoch,
            "loss": history.history["loss"],
            "mae": history.history["mae"],
            "rate": float(keras.ops.convert_to_numpy(optimizer.learning_rate)),
            "iterations": int(optimizer.iterations.numpy()),
            "weights": np.concatenate([w.ravel() for w in model.get_weights()]).tolist(),
            "velocity": np.concatenate([v.numpy().ravel() for v in optimizer.momentums]).tolist(),
        }
    if RANK == 0:
        (folder / f"found-{SIZE}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    where = pathlib.Path(where)
    if what == "resized":
        resized(where)
        kinds = (*rest_of_epoch_job.KINDS, *rest_of_epoch_job.FEW)
        rest_of_epoch_job.train_all(where, 2 if SIZE == 4 else None, kinds)
    else:
        frequency = rest[0] if rest[0] == "epoch" else int(rest[0])
        if what == "killed":
            train(where / "backup", frequency, 1, Kill(rest[1]))
        else:
            again(where, frequency)
