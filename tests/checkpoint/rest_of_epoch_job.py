"""Trainings that are interrupted in the middle of an epoch and go on with other numbers of ranks.

`rest_of_epoch_job.py FOLDER [STEP]`: a start that is interrupted after that step of its epoch 1, or
one that goes on to the end. In the model, the weight of a sample is the number of its uses.
"""

import json
import pathlib
import sys

import keras
import numpy as np

import easyddl as ddl

ddl.init()
from counting_model import counting_model, uses_of  # noqa: E402
from interrupted_fits import Interrupt  # noqa: E402

SAMPLES, EPOCHS, BATCH = 97, 3, 4
KINDS = ("shuffled", "permuted", "in order", "epoch", "batches", "derived")
# After 2 steps of 4 ranks one item is left, so that one of 2 ranks has none. Or none is left, where
# 2 ranks have different numbers of batches.
FEW = {"one left": 33, "one batch left": 33, "none left": 25}


class InterruptAfter(Interrupt):
    """Ends a fit after a step, because a rank may have no next one."""

    def on_train_batch_begin(self, batch, logs=None):
        pass

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_begin(batch + 1)


class Batches(keras.utils.PyDataset):
    def __init__(self, samples, **arguments):
        super().__init__(**arguments)
        self.samples = samples

    def __len__(self):
        return -(-self.samples // BATCH)

    def __getitem__(self, index):
        rows = np.eye(self.samples, dtype="float32")[index * BATCH :][:BATCH]
        return rows, np.zeros(len(rows), "float32")


def data_of(kind, samples):
    x, y = np.eye(samples, dtype="float32"), np.zeros(samples, "float32")
    keep = {"remainder": "keep"}
    if kind == "loader":
        import torch

        pairs = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
        loader = torch.utils.data.DataLoader(pairs, batch_size=BATCH, shuffle=True)
        return {"x": ddl.split_data(loader, **keep)}
    if kind == "epoch":
        return {"x": ddl.split_data(x, y, shuffle="epoch", batch_size=BATCH, **keep)}
    if kind == "batches":
        return {"x": ddl.split_data(Batches(samples), shuffle="epoch", **keep)}
    if kind == "one batch left":
        return {"x": ddl.split_data(Batches(samples, workers=2), shuffle="epoch", **keep)}
    x, y = ddl.split_data(x, y, shuffle=kind == "permuted", **keep)
    if kind == "derived":
        x, y = 1 * x, 1 * y
    return {"x": x, "y": y, "batch_size": BATCH, "shuffle": kind != "in order"}


def train(kind, folder, step):
    samples = FEW.get(kind, SAMPLES)
    keras.utils.set_random_seed(3)
    model = counting_model(samples)
    backup = ddl.BackupAndRestore(folder / kind, save_freq=1, rescale="none")
    epochs = []  # fractional ones, for which the rate is asked
    rate = ddl.LearningRateScheduleCallback(1.0, lambda e: epochs.append(e) or 1.0, staircase=False)
    interrupt = [] if step is None else [InterruptAfter(1, step)]
    callbacks = [ddl.DDLCallback(), backup, rate, *interrupt, ddl.DDLGlobalVariablesCallback()]
    try:
        model.fit(**data_of(kind, samples), epochs=EPOCHS, verbose=0, callbacks=callbacks)
    except KeyError:  # of `Interrupt`
        assert step is not None
    if step is None and kind in KINDS:
        # The rest of epoch 1, where it was interrupted; the last kind begins it again.
        assert (epochs[0] > 1.0) == (kind != "derived"), (kind, epochs[0])
        assert epochs == sorted(epochs), epochs
    return uses_of(model)


def train_all(folder, step, kinds=KINDS):
    """Trains on each kind of data, and writes how often each sample was used."""
    if keras.backend.backend() == "torch" and ddl.size() > 1:
        kinds += ("loader",)
    found = {kind: train(kind, folder, step) for kind in kinds}
    if ddl.is_root():
        (folder / f"uses-{ddl.size()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    train_all(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None)
