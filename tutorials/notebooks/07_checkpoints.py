# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Checkpoints
#
# A job can be killed at any time. This notebook kills a training in the middle of an epoch,
# starts it again, and compares its weights with those of a training that was not killed. Then you
# kill a rank of a job that starts itself again. The notebook also continues a training with
# another number of ranks, ends it as a scheduler does, and damages its files. You should know
# [the four lines](../four_lines.md). [Checkpoints](../checkpoints.md) is the guide to the two
# callbacks that are used here, and [The data](06_the_data.ipynb) explains `split_data`.
#
# To run it, install the extras `tensorflow`, `mpich` and `tutorials`, and open it in Jupyter: see
# [Notebooks](README.md).

# %%
import inspect
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import matplotlib.pyplot as plt
import numpy as np

import easyddl as ddl  # 1

# %% [markdown]
# ## The training
#
# `train` trains a small network on scikit-learn's digits. It contains three of the four lines.
# The third, `scale_lr`, is left out: the rate of 0.1 belongs to a step of 64 samples, and a step
# takes 64 samples on any number of ranks.
#
# - **Batches.** The ranks share the 64 samples of a step. An epoch has 16 steps, and the training
#   has 4 epochs.
# - **Order.** `split_data(..., shuffle="epoch")` draws a new order of all samples in each epoch.
#   The order depends only on the number of the epoch. Therefore each step takes the same 64
#   samples on any number of ranks.
# - **Backups.** `BackupAndRestore` saves the state of the training to a directory: with an
#   integer `save_freq` after that number of steps, and by default at the end of each epoch. If
#   the directory contains a backup when `fit` begins, the training resumes from it.
# - **Interruptions.** The callback `Interrupt` sends a signal to its own process, after a given
#   step of a given rank.


# %%
SAMPLES, GLOBAL_BATCH, EPOCHS = 1024, 64, 4
STEPS = SAMPLES // GLOBAL_BATCH  # of an epoch


def new_model(dropout):
    """A compiled classifier."""
    import keras

    layers = [
        keras.layers.Input((64,)),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dropout(dropout),
        keras.layers.Dense(10, activation="softmax"),
    ]
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def interrupt(rank, step, number):
    """A callback that sends a signal to its own process, after a step of one rank."""
    import keras

    class Interrupt(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1
            if (ddl.rank(), self.steps) == (rank, step):
                os.kill(os.getpid(), number)

    return Interrupt()


def train(backup, at=None, checkpoint=None, epochs=EPOCHS, dropout=0.0, batch=None, pause=0):
    """Trains on digits.

    Args:
        backup: Dictionary, the arguments of `BackupAndRestore`.
        at: Tuple of a rank, a step and a signal. `None` for no interruption.
        checkpoint: Dictionary, the arguments of `ModelCheckpoint`. `None` for no checkpoint.
        epochs: Integer, the number of epochs.
        dropout: Float, the rate of the layer `Dropout`.
        batch: Integer, the samples of a rank in a step. By default the ranks share 64 samples.
        pause: Float, seconds to wait after each step.

    Returns:
        Dictionary with the numbers of the epochs that were trained, the loss of each of them, the
        number of steps of an epoch, the learning rate at the end, and the weights.
    """
    import keras
    from sklearn.datasets import load_digits

    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    data = ddl.split_data(  # 2
        images[:SAMPLES].astype("float32") / 16,
        labels[:SAMPLES],
        shuffle="epoch",
        batch_size=batch or GLOBAL_BATCH // ddl.size(),
    )
    model = new_model(dropout)
    mine = [interrupt(*at)] if at else []
    mine += [keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_, **__: time.sleep(pause))]
    mine += [ddl.ModelCheckpoint(**checkpoint)] if checkpoint else []
    mine += [ddl.BackupAndRestore(**backup)]
    callbacks = [ddl.DDLCallback(), *mine, ddl.DDLGlobalVariablesCallback()]  # 4
    history = model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
    return {
        "epochs": history.epoch,
        "loss": history.history["loss"],
        "steps": history.params["steps"],
        "rate": float(keras.ops.convert_to_numpy(model.optimizer.learning_rate)),
        "weights": model.get_weights(),
    }


# %% [markdown]
# The first training runs on two ranks without interruption. The other trainings are compared with
# it. All files go to a temporary directory. It is the working directory of this notebook, and
# therefore also that of the ranks.

# %%
folder, start = tempfile.TemporaryDirectory(), os.getcwd()
os.chdir(folder.name)
pair = ddl.Ranks(np=2)
whole = pair.run(train, args=({"backup_dir": "whole"},))


def same_bits(a, b):
    """Whether two trainings have ended with the same weights, bit by bit."""
    pairs = zip(a["weights"], b["weights"], strict=True)
    return all(x.tobytes() == y.tobytes() for x, y in pairs)


def distance(a, b):
    """The largest difference between two weights at the same place."""
    return max(np.abs(x - y).max() for x, y in zip(a["weights"], b["weights"], strict=True))


def describe(result):
    """Prints the epochs that were trained, and their losses."""
    for epoch, loss in zip(result["epochs"], result["loss"], strict=True):
        print(f"epoch {epoch}: loss {loss:.6f}")


describe(whole[0])
assert same_bits(*whole)  # the two ranks
assert whole[0]["loss"][-1] < 0.5 * whole[0]["loss"][0]

# %% [markdown]
# ## Kill it
#
# Now the same training saves a backup after every 5 steps. After step 28, which is step 12 of the
# second epoch, rank 1 gets SIGKILL. `kill -9` sends this signal, and Linux sends it when memory
# runs out. No process can catch it. Without help, rank 0 would wait for rank 1 forever. The job
# notices the loss, ends, and raises a `RankError` in the cell. The last line of the error names
# the cause.

# %%
KILL_STEP, SAVE_FREQ = 28, 5


def error_of(ranks, function, *args, **kwargs):
    """Runs a function that fails on the ranks, and returns the error."""
    try:
        ranks.run(function, args, kwargs)
    except ddl.RankError as error:
        return error
    raise AssertionError("no rank has failed")


def files(directory):
    """Prints the files below a directory. Returns their sizes in bytes, by name."""
    found = sorted(each for each in pathlib.Path(directory).rglob("*") if each.is_file())
    sizes = {str(each.relative_to(directory)): each.stat().st_size for each in found}
    for name, size in sizes.items():
        print(f"{size:6} bytes  {name}")
    return sizes


backup = {"backup_dir": "killed", "save_freq": SAVE_FREQ}
error = error_of(pair, train, backup, at=(1, KILL_STEP, signal.SIGKILL))
shutil.copytree("killed", "for_one_rank")  # for a later section
print(str(error).splitlines()[-1], end="\n\n")
found = files("killed")
assert error.rank == 1 and len(found) == 2

# %% [markdown]
# A backup is a directory with a number: that of the backup. Rank 0 has written it, and its two
# files contain the state of the whole job. `state.json` says where in the training it was made.
# Epochs count from 0, so epoch 1 is the second epoch.


# %%
def saved_steps(directory):
    """Prints where in the training the only backup was made. Returns the number of steps."""
    (path,) = pathlib.Path(directory).glob("backup-*")
    state = json.loads((path / "state.json").read_text())
    print(f"{path.name}: epoch {state['epoch']}, after {state['batch']} of its {STEPS} steps")
    return state["epoch"] * STEPS + state["batch"]


steps = saved_steps("killed")
done_and_saved = {"SIGKILL, a backup every 5 steps": (KILL_STEP, steps)}
assert steps == KILL_STEP // SAVE_FREQ * SAVE_FREQ == 25

# %% [markdown]
# The training has lost three steps, from 26 to 28. It will take them again.
#
# ## Start it again
#
# The ranks are gone, so the cell below starts two new ones. It calls `train` with the same
# arguments, as you would start the same script again. The training resumes in the second epoch
# and ends with the same bits as the training without interruption. The mean loss of the
# interrupted epoch is the same too, because a backup contains the sums of the metrics.

# %%
pair = ddl.Ranks(np=2)
resumed = pair.run(train, args=(backup,))
describe(resumed[0])
assert resumed[0]["epochs"] == [1, 2, 3]
assert resumed[0]["loss"] == whole[0]["loss"][1:]
assert same_bits(resumed[0], whole[0]) and same_bits(*resumed)
assert not os.path.exists("killed")

# %% [markdown]
# The directory is gone: a backup is deleted when its training has ended.
# `delete_checkpoint=False` keeps it.
#
# ## Go on with another number of ranks
#
# The cell that killed the job has copied its backup to `for_one_rank`. It is a backup of two
# ranks. One rank can resume from it, or four ranks. There are two ways:
#
# - **The global batch stays.** One rank takes 64 samples in a step, as the two ranks did
#   together. The rate stays too: pass `rescale="none"`.
# - **The batch of a rank stays.** One rank takes 32 samples in a step, and an epoch has twice as
#   many steps. By default, `BackupAndRestore` then halves the rate.
#
# The cell below takes the first way. Each step has the samples that it would have had on two
# ranks, but one process adds their gradients in another order. So the weights are the same up to
# rounding, and not bit by bit. With `Dropout` they would be further apart, because every rank
# draws random numbers of its own.

# %%
alone = ddl.Ranks(np=1)
backup = {"backup_dir": "for_one_rank", "save_freq": SAVE_FREQ, "rescale": "none"}
(one,) = alone.run(train, args=(backup,))
print(f"epochs {one['epochs']}, largest difference of a weight: {distance(one, whole[0]):.1e}")
assert one["epochs"] == [1, 2, 3]
assert distance(one, whole[0]) < 1e-4

# %% [markdown]
# ## Kill a job that starts itself again
#
# In a job of `easyddl run --restarts N` nobody has to start the ranks again. If a rank is killed
# or a host is lost, `easyddl run` starts the same command once more, at most N times. The cell
# below writes a script that calls `train`, and starts it on two ranks. A pause of 0.2 seconds
# after each step gives you time. Each rank prints the number of its process.

# %%
TRAINING = """
import os
import time

import numpy as np

import easyddl as ddl

SAMPLES, GLOBAL_BATCH, EPOCHS = 1024, 64, 4
"""
MAIN = """
print(f"rank {ddl.rank()} is process {os.getpid()}", flush=True)
result = train({"backup_dir": "restarted", "save_freq": 5}, pause=0.2)
if ddl.is_root():
    print(f"trained the epochs {result['epochs']} in start {os.environ['EASYDDL_START']}")
    np.savez("weights.npz", *result["weights"])
"""
functions = [inspect.getsource(each) for each in (new_model, train)]
pathlib.Path("train.py").write_text("\n\n".join([TRAINING, *functions, MAIN]))

command = [sys.executable, "-m", "easyddl", "run", "--quiet", "--restarts", "3", "-np", "2"]
with open("job.log", "w") as log:
    job = subprocess.Popen([*command, sys.executable, "train.py"], stdout=log, stderr=log)

# %% [markdown]
# Now kill rank 1. The cell below waits until the job has saved a backup, finds the process in the
# log, and sends it SIGKILL. A terminal serves as well: `kill -9` and the number. Run the cell
# again while the job goes on, and see how many kills the job survives. Each start needs a backup
# of its own: a start that has saved none ends the job, because it would fail again.


# %%
def kill(rank):
    """Kills a rank of the job, as soon as there is a backup. Returns the number of its process."""
    while job.poll() is None and not list(pathlib.Path(".").glob("restarted/backup-*")):
        time.sleep(0.1)
    log = pathlib.Path("job.log").read_text()
    process = int(re.findall(rf"rank {rank} is process (\d+)", log)[-1])
    os.kill(process, signal.SIGKILL)
    return process


print("killed process", kill(rank=1))

# %% [markdown]
# The cell below waits for the end of the job, and shows the main lines of its log. `easyddl run`
# says which rank was lost, and what the restart took. Then the weights are compared with those of
# the training without interruption.

# %%
status = job.wait()
log = pathlib.Path("job.log").read_text()
print(*re.findall(r".*(?:rank \d|restart|trained).*", log), sep="\n")
assert status == 0 and "the restart took" in log

with np.load("weights.npz") as saved:
    restarted = {"weights": [saved[name] for name in saved.files]}
assert same_bits(restarted, whole[0])

# %% [markdown]
# The bits are the same. A lost rank has cost some seconds and the steps since the last backup.
# [Checkpoints](../checkpoints.md#restart-after-a-lost-rank-or-host) says what happens when a
# whole host is lost, and which ends of a job are final.
#
# ## When a scheduler takes the hosts back
#
# A scheduler sends SIGTERM first, and SIGKILL after a grace time. `BackupAndRestore` uses this
# time. If any rank receives SIGTERM, all ranks stop after the same step, rank 0 saves a backup
# there, and all ranks end with status 143. No step is lost, even with one backup per epoch.
#
# This time the network has a `Dropout` layer. A backup contains the random numbers of each rank,
# so the bits are the same again. The cell below first trains without interruption, and then sends
# SIGTERM to rank 1 after step 23.

# %%
TERM_STEP = 23
whole_dropout = pair.run(train, args=({"backup_dir": "whole"},), kwargs={"dropout": 0.4})
backup = {"backup_dir": "stopped"}
error = error_of(pair, train, backup, dropout=0.4, at=(1, TERM_STEP, signal.SIGTERM))
assert isinstance(error.__cause__, SystemExit) and error.failed == (0, 1)
print("status", error.__cause__.code)
assert error.__cause__.code == 128 + signal.SIGTERM

steps = saved_steps("stopped")
done_and_saved["SIGTERM, one backup per epoch"] = (steps, steps)
assert TERM_STEP <= steps <= TERM_STEP + 1  # the step in which the signal came, or the next one

# %% [markdown]
# easyddl's message counts epochs from 1, so its epoch 2 is the epoch 1 of `state.json`.
#
# In a job of `easyddl run`, 143 is the exit status of the job. The script of a batch job can
# recognize it and submit the job again: see [On a cluster](10_on_a_cluster.ipynb). In a notebook
# the ranks stay usable, and the next call resumes on them.

# %%
resumed = pair.run(train, args=(backup,), kwargs={"dropout": 0.4})
describe(resumed[0])
assert resumed[0]["epochs"] == [1, 2, 3]
assert same_bits(resumed[0], whole_dropout[0])
assert not same_bits(resumed[0], whole[0])  # Dropout makes another training

# %% [markdown]
# ## A kill in the middle of a write
#
# A job can also be killed while it writes a backup. `BackupAndRestore` writes the variables by
# NumPy's `savez`. The function below replaces it by a function that kills the process when half
# of the third backup is written.


# %%
def killed_in_write(backup):
    """Trains, and is killed in the middle of the third backup."""
    savez, written = np.savez, []

    def write_half(path, *arrays):
        savez(path, *arrays)
        written.append(path)
        if len(written) == 3:
            os.truncate(path, os.path.getsize(path) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    np.savez = write_half
    return train(backup)


backup = {"backup_dir": "torn", "rescale": "none"}
error_of(alone, killed_in_write, backup)
torn = files("torn")
half, *complete = torn
assert half.startswith(".new-3-") and half.endswith("/variables.npz")
assert complete == ["backup-2/state.json", "backup-2/variables.npz"]
assert torn[half] < torn["backup-2/variables.npz"]
shutil.copytree("torn", "exercise")
done_and_saved["SIGKILL in the third backup"] = (3 * STEPS, saved_steps("torn"))

# %% [markdown]
# The half backup has a temporary name that begins with `.new-3`. When all bytes of a backup are on
# the disk, it is renamed to its final name, here `backup-3`, and only then is the previous one
# removed. So a backup with a final name is always complete. The next start removes the half one
# and resumes from `backup-2`, after two of the four epochs. This time one rank was killed, and two
# ranks go on.

# %%
resumed = pair.run(train, args=(backup,))
difference = distance(resumed[0], whole[0])
print(f"epochs {resumed[0]['epochs']}, largest difference of a weight: {difference:.1e}")
assert resumed[0]["epochs"] == [2, 3] and difference < 1e-4
assert not os.path.exists("torn")

# %% [markdown]
# ## A damaged backup
#
# A faulty disk or an incomplete copy can damage a file later. With `double_checkpoint=True`,
# `BackupAndRestore` keeps the previous backup as well. When it reads a backup, it checks the
# files. If the last backup is damaged, rank 0 prints a warning, and the previous one is used. The
# cell below trains two epochs, cuts a file of the last backup in half, and continues.

# %%
backup = {"backup_dir": "double", "double_checkpoint": True, "delete_checkpoint": False}
pair.run(train, args=(backup,), kwargs={"epochs": 2})
found = files("double")
assert {os.path.dirname(name) for name in found} == {"backup-1", "backup-2"}


def cut(path):
    """Removes the second half of a file."""
    os.truncate(path, os.path.getsize(path) // 2)


cut("double/backup-2/variables.npz")
done_and_saved["damage of the last of two backups"] = (2 * STEPS, STEPS)
resumed = pair.run(train, args=(backup,))
describe(resumed[0])
assert resumed[0]["epochs"] == [1, 2, 3] and same_bits(resumed[0], whole[0])

# %% [markdown]
# If no backup can be read, all ranks raise an error. The training does not start from the
# beginning on its own.

# %%
for path in pathlib.Path("double").glob("backup-*/variables.npz"):
    cut(path)
error = error_of(pair, train, backup)
print(f"{type(error.__cause__).__name__}: {error.__cause__}")
assert isinstance(error.__cause__, OSError) and error.failed == (0, 1)

# %% [markdown]
# ## What each interruption cost
#
# The training has 64 steps. The dark part of a bar is what the backup kept, and the light part is
# what the training took again. A SIGTERM costs no step. A SIGKILL costs at most the steps since
# the last backup, so choose `save_freq` by the time that you are ready to lose.

# %%
figure, ax = plt.subplots(figsize=(7, 2.6), layout="constrained")
names = list(done_and_saved)
done, saved = np.transpose(list(done_and_saved.values()))
ax.barh(names, saved, color="C0", label="kept")
ax.barh(names, done - saved, left=saved, color="C0", alpha=0.3, label="taken again")
ax.invert_yaxis()
ax.set(xlabel="steps before the interruption", xlim=(0, EPOCHS * STEPS))
ax.legend(loc="lower right")
plt.show()
assert (saved <= done).all() and (done - saved)[0] < SAVE_FREQ

# %% [markdown]
# ## A model for later use
#
# A backup serves to resume one training. `ddl.ModelCheckpoint` saves the model itself, with the
# arguments of Keras's callback: below, after each epoch whose loss is the lowest so far. Its
# files, too, are written under another name and then renamed. All ranks pass the callback, and
# only rank 0 writes. To show this, each rank passes another name. Only the file of rank 0 exists
# afterwards.


# %%
def train_and_save():
    """Trains with a checkpoint that has another name on each rank."""
    name = f"models/rank-{ddl.rank()}.keras"
    checkpoint = {"filepath": name, "monitor": "loss", "save_best_only": True}
    return train({"backup_dir": "backup"}, checkpoint=checkpoint)


def load(path):
    """The weights of a saved model."""
    import keras

    return {"weights": keras.saving.load_model(path).get_weights()}


os.mkdir("models")
trained = pair.run(train_and_save)
assert list(files("models")) == ["rank-0.keras"]
loaded = pair.run(load, args=("models/rank-0.keras",))
assert same_bits(loaded[0], trained[0]) and same_bits(loaded[1], trained[1])

# %% [markdown]
# `keras.saving.load_model` also loads this file where easyddl is not installed.
#
# ## Exercise
#
# The directory `exercise` contains a backup that one rank made after two epochs, with 64 samples
# in a step. Resume from it on the two ranks of `pair` in the other way, so that *each rank* takes
# 64 samples in a step. What is the learning rate then? How many steps has an epoch? Assert the
# rate: `train` returns it.
#
# ## Solution

# %% tags=["hide-cell"]
backup = {"backup_dir": "exercise"}  # rescale="linear" is the default
resumed = pair.run(train, args=(backup,), kwargs={"batch": 64})
print(f"rate {whole[0]['rate']:.2f}, and then {resumed[0]['rate']:.2f}")
describe(resumed[0])
assert resumed[0]["epochs"] == [2, 3]
np.testing.assert_allclose(resumed[0]["rate"], 2 * whole[0]["rate"], rtol=1e-6)
print(f"steps of an epoch: {whole[0]['steps']}, and then {resumed[0]['steps']}")
assert resumed[0]["steps"] == whole[0]["steps"] // 2

pair.close()
alone.close()
os.chdir(start)
folder.cleanup()

# %% [markdown]
# Two ranks take 128 samples in a step, twice as many as before. The rate in the backup belongs to
# 64 samples. So it is doubled, and the velocity of SGD with it. An epoch has 8 steps instead of
# 16.
#
# What next: [Strategies](08_strategies.ipynb) compares ways to train on many ranks, and [On a
# cluster](10_on_a_cluster.ipynb) shows how a scheduler starts a job again.
