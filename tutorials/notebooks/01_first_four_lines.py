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
# # First four lines
#
# Four lines turn a Keras script that trains in one process into a script that trains in many. This
# notebook adds them to a small script, starts it on one, two and four ranks, and then leaves out
# one line at a time, to show what each of them does. You should have trained a model with
# `model.fit()` before. You need no knowledge of MPI: the next notebook,
# [What MPI is](02_what_mpi_is.ipynb), explains it. [The four lines](../four_lines.md) is the
# reference for what you see here.
#
# To run it, install the extras `tensorflow`, `mpich` and `tutorials`, and open it in Jupyter: see
# [Notebooks](README.md).

# %%
import contextlib
import difflib
import io
import pathlib
import re
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import easyddl as ddl

# %% [markdown]
# ## A plain Keras script
#
# The script classifies handwritten digits. The data set comes with scikit-learn: 1797 real images
# of 8 by 8 pixels. The script trains on 1344 of them and holds out 453.

# %%
PLAIN = """\
import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

keras.utils.set_random_seed(1)
images, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    images / 16, labels, test_size=453, stratify=labels, random_state=0
)

model = keras.Sequential(
    [
        keras.layers.Input((64,)),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=16, epochs=10, verbose=0)

_, accuracy = model.evaluate(x_test, y_test, verbose=0)
print(f"Held-out accuracy: {accuracy:.4f}")
"""

# %% [markdown]
# ## The same script with the four lines
#
# Each edit below replaces one piece of the plain script. The `diff` shows the result.

# %%
EDITS = [
    ("import keras\n", "import easyddl as ddl  # 1\nimport keras\n"),
    ("\nmodel = ", "x_train, y_train = ddl.split_data(x_train, y_train)  # 2\n\nmodel = "),
    ("SGD(0.01, momentum=0.9)", "SGD(ddl.scale_lr(0.01), momentum=0.9)  # 3"),
    (
        "epochs=10, verbose=0)",
        "epochs=10, verbose=0,\n"
        "          callbacks=[ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()])  # 4",
    ),
]


def edited(script, edits):
    """The script with each old piece, which must occur once, replaced by the new one."""
    for old, new in edits:
        assert script.count(old) == 1, old
        script = script.replace(old, new)
    return script


FOUR_LINES = edited(PLAIN, EDITS)
diff = difflib.unified_diff(PLAIN.splitlines(), FOUR_LINES.splitlines(), n=1, lineterm="")
print(*diff, sep="\n")

# %% [markdown]
# ## Start it on one, two and four ranks
#
# A *rank* is one process of the job. `easyddl run -np 4 python train.py` starts four processes,
# each of which runs the whole script, and gives each process its number, from 0 to 3. Rank 0 is the
# *root*. The cell below starts `python -m easyddl run`, which is the same command. `--quiet` leaves
# out the line that tells how the ranks are started.
#
# Every rank prints the held-out accuracy, and `easyddl run` puts the number of the rank in front of
# each line. The first start is the plain script, without easyddl.

# %%
folder = tempfile.TemporaryDirectory()
plain, four_lines = (pathlib.Path(folder.name) / name for name in ("plain.py", "four_lines.py"))
plain.write_text(PLAIN)
four_lines.write_text(FOUR_LINES)


def start(*arguments):
    """Runs Python with these arguments, and returns what it prints."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


printed = {"plain script": start(plain)}
for count in (1, 2, 4):
    run = ("-m", "easyddl", "run", "--quiet", "-np", str(count), sys.executable, four_lines)
    printed[f"four lines, {count} rank{'s' * (count > 1)}"] = start(*run)

for job, text in printed.items():
    print(f"{job}:", *sorted(text.splitlines()), sep="\n    ")

# %% [markdown]
# All ranks of a job print the same accuracy, because at the end they hold the same weights. The
# jobs differ slightly from each other: they start from the same weights, but each job puts other
# samples together in a batch. To judge such a difference, compare it with the error of the accuracy
# itself. With 453 held-out images, an accuracy $p$ has the standard error $\sqrt{p(1-p)/453}$. The
# cell below checks that all jobs lie within four standard errors of each other.

# %%
accuracies = {
    job: [float(found) for found in re.findall(r"accuracy: ([\d.]+)", text)]
    for job, text in printed.items()
}
assert [len(each) for each in accuracies.values()] == [1, 1, 2, 4]
assert all(len(set(each)) == 1 for each in accuracies.values())

jobs = np.array([each[0] for each in accuracies.values()])
standard_error = np.sqrt(jobs.mean() * (1 - jobs.mean()) / 453)
print(f"from {jobs.min():.4f} to {jobs.max():.4f}, with a standard error of {standard_error:.4f}")
assert jobs.min() > 0.9
assert jobs.max() - jobs.min() < 4 * standard_error

# %% [markdown]
# Two habits follow for your own scripts:
#
# - **Print and save on one rank.** Put it under `if ddl.is_root():`. Keras's own callbacks that
#   write files need no change: see
#   [What else to watch for](../four_lines.md#what-else-to-watch-for).
# - **`batch_size` is the batch of each rank.** Four ranks with 16 samples each take one step with
#   64 samples, so an epoch has a quarter of the steps.
#
# ## What each line does
#
# To see what a line does, train without it. This is easier with a function than with a script:
# `ddl.Ranks` starts two ranks that stay, and `ranks.run` calls a function on both of them
# ([From a notebook](../notebooks.md)). The first call takes longer than the others, because both
# ranks import Keras.

# %%
ranks = ddl.Ranks(np=2)
assert ranks.run(ddl.rank) == [0, 1]

# %% [markdown]
# Each switch of `train` leaves out one of the lines. A script without a seed starts from different
# weights on each rank. `train` gives each rank a seed of its own, which has the same effect and can
# be repeated.

# %%
BATCH, EPOCHS = 16, 6

images, labels = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    images / 16, labels, test_size=453, stratify=labels, random_state=0
)


def small_model():
    import keras

    keras.utils.set_random_seed(100 + ddl.rank())
    return keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def train(split=True, scale=True, average=True, broadcast=True):
    """Trains with the chosen lines on this rank.

    Returns:
        Dictionary: the weights at the start and at the end, the number of steps, the loss of each
        epoch, and the held-out accuracy of this rank's model.
    """
    import keras

    model = small_model()
    before = model.get_weights()
    shard = ddl.split_data(x_train, y_train) if split else (x_train, y_train)
    optimizer = keras.optimizers.SGD(ddl.scale_lr(0.01) if scale else 0.01, momentum=0.9)
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [ddl.DDLCallback()] * average + [ddl.DDLGlobalVariablesCallback()] * broadcast
    history = model.fit(
        *shard, batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=callbacks
    ).history
    return {
        "before": before,
        "after": model.get_weights(),
        "steps": int(optimizer.iterations.numpy()),
        "loss": history["loss"],
        "accuracy": model.evaluate(x_test, y_test, verbose=0)[1],
    }


def gaps(results, when):
    """The weights of rank 0 minus those of rank 1, as a list of arrays."""
    return [a - b for a, b in zip(results[0][when], results[1][when], strict=True)]


def difference(results, when):
    """The largest difference between a weight of rank 0 and the same weight of rank 1."""
    return max(abs(gap).max() for gap in gaps(results, when))


# %% [markdown]
# First without any of the lines, and with all of them. Without the lines, two ranks are two
# processes that train alone. Each of them takes as many steps in an epoch as the plain script,
# and the models differ. With the lines, each rank takes half the steps, and the models are equal
# in every bit.

# %%
none = ranks.run(train, args=(False, False, False, False))
every = ranks.run(train)

full_steps = EPOCHS * len(x_train) // BATCH
assert [each["steps"] for each in none] == [full_steps, full_steps]
assert [each["steps"] for each in every] == [full_steps // 2, full_steps // 2]
assert difference(none, "after") > 0.01
assert difference(every, "after") == 0

# %% [markdown]
# ### Line 1: `import easyddl as ddl`
#
# The other lines need it, so it cannot be left out alone. The import also divides the cores of the
# computer among its ranks. From there on, a failure of one rank ends all ranks.
#
# ### Line 2: `ddl.split_data`
#
# It gives each rank its own part of the samples, its *shard*. Without it, every rank trains on
# all samples. The ranks still agree, but each takes as many steps as one process: the job does
# twice the work, and no time is gained.

# %%
no_split = ranks.run(train, kwargs={"split": False})

assert [each["steps"] for each in no_split] == [full_steps, full_steps]
assert difference(no_split, "after") == 0

# %% [markdown]
# ### Line 3: `ddl.scale_lr`
#
# With two ranks an epoch has half as many steps. Without a larger learning rate the model therefore
# moves half as far in an epoch. `scale_lr` multiplies the rate by the number of ranks.
# [Large batches](../large_batches.md) shows how far this rule holds.

# %%
no_scale = ranks.run(train, kwargs={"scale": False})

assert difference(no_scale, "after") == 0
assert no_scale[0]["loss"][-1] > 1.2 * every[0]["loss"][-1]

epochs = range(1, EPOCHS + 1)
plt.figure(figsize=(7, 4))
plt.plot(epochs, none[0]["loss"], "o-", label="one process")
plt.plot(epochs, every[0]["loss"], "s-", label="2 ranks, four lines")
plt.plot(epochs, no_scale[0]["loss"], "^--", label="2 ranks, without scale_lr")
plt.xlabel("epoch")
plt.ylabel("loss on the training samples")
plt.title("With a scaled learning rate, two ranks keep up with one process")
plt.grid(alpha=0.3)
plt.legend()
plt.show()

# %% [markdown]
# ### Line 4, first callback: `ddl.DDLCallback`
#
# It averages the gradients over the ranks in every step. Without it, each rank trains alone on its
# shard. `fit` does not fail, and at the end there are two different models, each of which has seen
# half of the data. easyddl prints a warning about this when the job ends: see the last cell of this
# notebook.

# %%
no_average = ranks.run(train, kwargs={"average": False})

assert difference(no_average, "after") > 0.01

# %% [markdown]
# ### Line 4, second callback: `ddl.DDLGlobalVariablesCallback`
#
# It broadcasts the weights of the root before the first step, that is, it copies them to all
# ranks. Without it, the ranks start from different weights. `DDLCallback` warns about this when
# `fit` begins, and again at the end, when it compares the weights of the ranks.

# %%
with contextlib.redirect_stderr(io.StringIO()) as warnings:
    no_broadcast = ranks.run(train, kwargs={"broadcast": False})

print(warnings.getvalue())
assert "each rank starts from its own weights" in warnings.getvalue()
assert "the ranks' models differ after model.fit()" in warnings.getvalue()
assert difference(no_broadcast, "before") > 0.01
assert difference(no_broadcast, "after") > 0.01

# %% [markdown]
# The two models do not approach each other. In every step all ranks apply the same averaged
# gradient, so each weight of rank 0 keeps its distance from the same weight of rank 1, up to
# rounding. Equal steps keep equal models equal, and different models different. Therefore one
# broadcast before the first step is enough, and without it no later step makes up for it.

# %%
for at_start, at_end in zip(gaps(no_broadcast, "before"), gaps(no_broadcast, "after"), strict=True):
    np.testing.assert_allclose(at_end, at_start, atol=1e-4)

# %% [markdown]
# All trainings in one table. A difference of exactly 0 means that the ranks hold the same model.

# %%
trainings = {
    "none of the lines": none,
    "all four lines": every,
    "without split_data": no_split,
    "without scale_lr": no_scale,
    "without DDLCallback": no_average,
    "without DDLGlobalVariablesCallback": no_broadcast,
}
print(f"{'':36}{'steps':>6}{'difference':>12}{'accuracy on ranks 0 and 1':>28}")
for name, results in trainings.items():
    first, second = (each["accuracy"] for each in results)
    print(
        f"{name:36}{results[0]['steps']:6}{difference(results, 'after'):12.3g}"
        f"{first:20.3f}{second:8.3f}"
    )

# %% [markdown]
# ## The order of the callbacks
#
# `DDLCallback` is the first callback and `DDLGlobalVariablesCallback` the last, with your own ones
# between them. `fit` moves them there if they are in another place. Two of one kind are an error.
# An exception on a rank arrives in the notebook as a `ddl.RankError`, whose cause is the exception.

# %%


def two_of_one_kind():
    model = small_model()
    model.compile("sgd", loss="sparse_categorical_crossentropy")
    callbacks = [ddl.DDLCallback(), ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
    model.fit(x_train, y_train, verbose=0, callbacks=callbacks)


try:
    ranks.run(two_of_one_kind)
except ddl.RankError as error:
    failed, message = error.failed, str(error.__cause__)
print(message)
assert failed == (0, 1)
assert "must contain only one DDLCallback" in message

# %% [markdown]
# ## Exercise
#
# Train with `keras.optimizers.Adam` instead of SGD, with a learning rate of 0.001 for one process.
# For Adam the rate grows with the square root of the number of ranks: see
# [line 3](../four_lines.md#3-kerasoptimizerssgdddlscale_lr001). Write a function `train_with_adam`
# that returns the learning rate, the weights and the held-out accuracy. Run it on the two ranks,
# and check three things: the rate is the one that you expect, the ranks hold the same weights, and
# the accuracy is above 0.9.

# %% [markdown]
# ## Solution

# %% tags=["hide-cell"]


def train_with_adam():
    import keras

    model = small_model()
    shard = ddl.split_data(x_train, y_train)
    optimizer = keras.optimizers.Adam(ddl.scale_lr(0.001, rule="sqrt"))
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
    model.fit(*shard, batch_size=BATCH, epochs=10, verbose=0, callbacks=callbacks)
    return {
        "rate": float(optimizer.learning_rate.numpy()),
        "after": model.get_weights(),
        "accuracy": model.evaluate(x_test, y_test, verbose=0)[1],
    }


adam = ranks.run(train_with_adam)
print(f"rate {adam[0]['rate']:.5f}, accuracy {adam[0]['accuracy']:.3f}")
assert np.isclose(adam[0]["rate"], 0.001 * np.sqrt(2))
assert difference(adam, "after") == 0
assert adam[0]["accuracy"] > 0.9

# %% [markdown]
# ## The end of the job
#
# The ranks end when the notebook closes them. Some of the trainings above had no `DDLCallback`, and
# now easyddl warns about that.

# %%
with contextlib.redirect_stderr(io.StringIO()) as warnings:
    ranks.close()
folder.cleanup()

print(warnings.getvalue())
assert "every rank trained alone" in warnings.getvalue()

# %% [markdown]
# ## What next
#
# - [What MPI is](02_what_mpi_is.ipynb) explains ranks and the messages between them.
# - [Allreduce, seen](03_allreduce_seen.ipynb) looks at the one collective that training needs.
# - [The data](06_the_data.ipynb) shows what `split_data` does with other kinds of data.
