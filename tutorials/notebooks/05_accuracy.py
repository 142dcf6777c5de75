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
# # Accuracy
#
# A job of more ranks takes larger batches, and fewer steps in an epoch. This notebook shows what
# that does to the training error and to the accuracy, for 1 to 16 ranks, and what to change, in
# which order. You should know [the four lines](../four_lines.md). [Scaling](04_scaling.ipynb) is
# about the time that more ranks save. [Large batches](../large_batches.md) describes a longer
# experiment of the same kind.
#
# To run it, install the extras `tensorflow`, `mpich` and `tutorials`, and open it in Jupyter: see
# [Notebooks](README.md).

# %%
from concurrent.futures import ThreadPoolExecutor

import matplotlib.pyplot as plt
import numpy as np

import easyddl as ddl  # 1

# %% [markdown]
# ## A training that stands for many ranks
#
# The data are scikit-learn's digits: 1024 images to train on, and 773 held-out images. The
# network is small and dense. One rank takes batches of 16 samples, with a learning rate of 0.016.
#
# `train` is a function with the four lines. Its argument `ranks` is the number of ranks that the
# training stands for. It determines the batch and the rate of a step:
#
# - **The batch.** All ranks together take `16 * ranks` samples. The ranks that run the function
#   share them.
# - **The rate.** `LearningRateWarmup` replaces `scale_lr`. With `rule="linear"` the rate rises
#   during the warmup from 0.016 to `0.016 * ranks`. With `warmup=0` it is `0.016 * ranks` from
#   the first step on, as with `scale_lr`. With `rule="none"` it is always 0.016. Here `size` is
#   the number of ranks that the training stands for. In a job of your own, leave it out: it is
#   then the number of ranks of the job.
#
# The initial weights are twice as large as those of He's initialization. They make the first
# steps of this small network as sensitive as those of a large one.

# %%
SAMPLES, BATCH, RATE, EPOCHS = 1024, 16, 0.016, 12


def digits():
    """Returns training images, held-out images, training labels and held-out labels."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    images = images.astype("float32") / 16
    return train_test_split(images, labels, train_size=SAMPLES, stratify=labels, random_state=0)


def new_model():
    """A network with three hidden layers, and initial weights twice as large as He's."""
    import keras

    start = keras.initializers.VarianceScaling(scale=4 * 2, distribution="uniform")
    sizes = [(64, "relu"), (64, "relu"), (64, "relu"), (10, "softmax")]
    layers = [keras.layers.Dense(*size, kernel_initializer=start) for size in sizes]
    return keras.Sequential([keras.layers.Input((64,)), *layers])


def train(seed, ranks, rule="linear", warmup=0, epochs=EPOCHS, shuffle=True):
    """Trains as a job of `ranks` ranks would. Returns the errors in percent and the weights."""
    import keras

    keras.utils.set_random_seed(seed)
    x_train, x_test, y_train, y_test = digits()
    x_train, y_train = ddl.split_data(x_train, y_train)  # 2
    steps = SAMPLES // (BATCH * ranks)  # per epoch
    rate = ddl.LearningRateWarmup(  # 3
        RATE, warmup_epochs=warmup, steps_per_epoch=steps, rule=rule, size=ranks
    )
    model = new_model()
    model.compile(
        keras.optimizers.SGD(rate, momentum=0.9),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        steps_per_execution=steps,
    )
    history = model.fit(
        x_train,
        y_train,
        batch_size=BATCH * ranks // ddl.size(),
        epochs=epochs,
        shuffle=shuffle,
        verbose=0,
        callbacks=[ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()],  # 4
    )
    found = np.argmax(model(x_test), axis=1)
    return {
        "training": 100 * (1 - np.array(history.history["accuracy"])),
        "held-out": 100 * np.mean(found != y_test),
        "weights": model.get_weights(),
    }


# %% [markdown]
# ## `k` ranks take the step of one process
#
# The cell below trains three times: on two ranks with batches of 16, in one process with batches
# of 32, and in one process with batches of 16. `shuffle=False` gives the first two trainings the
# same samples in each step: `split_data` gives rank 0 the samples 0, 2, 4 and so on, and rank 1
# the samples 1, 3, 5 and so on.

# %%
pair = ddl.Ranks(np=2)
one_core = {"TF_NUM_INTRAOP_THREADS": "1"}  # the two jobs below share the cores
alone = [ddl.Ranks(np=1, env=one_core), ddl.Ranks(np=1, env=one_core)]

two = pair.run(train, args=(0, 2), kwargs={"epochs": 2, "shuffle": False})
(one,) = alone[0].run(train, args=(0, 2), kwargs={"epochs": 2, "shuffle": False})
(small,) = alone[0].run(train, args=(0, 1), kwargs={"epochs": 2, "shuffle": False})
pair.close()


def distance(a, b):
    """The largest difference between two weights at the same place."""
    return max(np.abs(x - y).max() for x, y in zip(a["weights"], b["weights"], strict=True))


print(f"rank 0 and rank 1:                           {distance(*two):.1e}")
print(f"2 ranks x 16 samples, 1 process x 32 samples: {distance(two[0], one):.1e}")
print(f"1 process x 16 samples, 1 process x 32:       {distance(small, one):.1e}")
assert distance(*two) == 0
assert distance(two[0], one) < 1e-4 < 1e-2 < distance(small, one)

# %% [markdown]
# The two ranks hold the same weights, bit by bit. Their weights differ from those of one process
# with batches of 32 only by rounding: the gradients of the samples are added in another order. A
# training with smaller batches is another training. By default, `fit` shuffles the samples, and
# does so in another order for another number of ranks. The results then differ as those of two
# seeds do.
#
# So what 8 ranks do to a model is what batches of 8 times the size do to it, and one process can
# show it. The rest of this notebook trains in jobs of one rank, with the batches and the rates of
# 1 to 16 ranks. There are two such jobs, which train at the same time, so that two cores have
# work.
#
# ## Three ways to choose the rate
#
# The more ranks, the fewer steps in an epoch:

# %%
NUMBERS = (1, 2, 4, 8, 16)
WARMUP = 4  # epochs

print("ranks  samples per step  steps per epoch  rate, not scaled  rate, scaled")
for k in NUMBERS:
    print(f"{k:5}  {BATCH * k:16}  {SAMPLES // (BATCH * k):15}  {RATE:16}  {RATE * k:12.3f}")

# %% [markdown]
# Each number of ranks trains from five seeds in three ways: with the rate of one rank, with the
# scaled rate, and with the scaled rate after a warmup of four epochs. For one rank these are the
# same.

# %%
WAYS = {  # arguments of `train`
    "not scaled": {"rule": "none"},
    "scaled": {"rule": "linear"},
    "scaled, with warmup": {"rule": "linear", "warmup": WARMUP},
}
SEEDS = range(5)


def train_all(trainings):
    """Trains several times. Each training is a dictionary of the arguments of `train`."""
    results = [train(**training) for training in trainings]
    return [{key: each[key] for key in ("training", "held-out")} for each in results]


def share(trainings):
    """Runs the trainings in the two jobs, at the same time. Returns the results in their order."""
    with ThreadPoolExecutor(2) as pool:
        halves = pool.map(
            lambda job, half: job.run(train_all, args=(half,))[0],
            alone,
            [trainings[0::2], trainings[1::2]],
        )
    results = [None] * len(trainings)
    results[0::2], results[1::2] = halves
    return results


plan = [
    (way, k, {"seed": seed, "ranks": k, **WAYS[way]})
    for way in WAYS
    for k in NUMBERS
    for seed in SEEDS
    if k > 1 or way == "not scaled"
]
curves, held_out = {}, {}
for (way, k, _), result in zip(plan, share([each[2] for each in plan]), strict=True):
    curves.setdefault((way, k), []).append(result["training"])
    held_out.setdefault((way, k), []).append(100 - result["held-out"])
for way in WAYS:
    curves[way, 1], held_out[way, 1] = curves["not scaled", 1], held_out["not scaled", 1]

# %% [markdown]
# ## The training error
#
# A line is the mean over the seeds. A band reaches from the best seed to the worst in each epoch.
# The gray line is the training of one rank.

# %%
figure, axes = plt.subplots(1, 2, figsize=(7, 4), sharey=True, layout="constrained")
epochs = np.arange(1, EPOCHS + 1)
for ax, k in zip(axes, (8, 16), strict=True):
    ax.plot(epochs, np.mean(curves["not scaled", 1], axis=0), "0.5", label="1 rank")
    for color, way in enumerate(WAYS):
        found = np.array(curves[way, k])
        ax.plot(epochs, found.mean(axis=0), f"C{color}", label=way)
        ax.fill_between(epochs, found.min(axis=0), found.max(axis=0), color=f"C{color}", alpha=0.15)
    ax.set(title=f"{k} ranks", xlabel="epoch", yscale="symlog", ylim=(0, 100))
axes[0].set_ylabel("training error [%]")
axes[0].set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
axes[1].legend(loc="lower left", fontsize="small")
plt.show()

# %% [markdown]
# - **Not scaled.** A step is as long as that of one rank, but there are fewer steps. The error
#   falls more slowly, and with 16 ranks more slowly than with 8.
# - **Scaled.** Longer steps are meant to make up for the smaller number of steps. But at the start,
#   the weights change fast, and such steps are too long for them. With 8 ranks, some seeds never
#   recover. An error of 90 % is guessing.
# - **Scaled, with warmup.** With 8 ranks, the rate is small while the weights change fast, and no
#   seed is lost. With 16 ranks, the full rate is too large for this network even after a warmup:
#   the linear rule holds only up to a limit.


# %%
def final(way, k):
    """The training error in the last epoch, the mean over the seeds."""
    return np.mean(curves[way, k], axis=0)[-1]


for way in WAYS:
    print(f"{way:20}", *(f"{k} ranks: {final(way, k):4.1f} %" for k in NUMBERS[2:]), sep="   ")

assert final("not scaled", 1) < 2
assert final("not scaled", 16) > final("not scaled", 8) + 2 > final("not scaled", 1) + 2
assert final("scaled", 8) > final("scaled, with warmup", 8) + 4
assert final("scaled, with warmup", 8) < 5
assert max(curve[-1] for curve in curves["scaled, with warmup", 8]) < 20  # no seed is lost
assert final("scaled, with warmup", 16) > final("scaled, with warmup", 8) + 10

# %% [markdown]
# With 4 ranks the training without scaling has the lowest error: 12 epochs are still enough steps
# for it. Scaling pays off where the steps become too few, here with 8 ranks.
#
# ## The accuracy
#
# The accuracy on held-out images shows the same. A bar is one standard deviation over the seeds,
# up and down.

# %%
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for number, way in enumerate(WAYS):
    found = np.array([held_out[way, k] for k in NUMBERS])
    place = np.array(NUMBERS) * 1.03 ** (number - 1)  # side by side
    ax.errorbar(place, found.mean(axis=1), found.std(axis=1), marker="o", capsize=3, label=way)
ax.set(xscale="log", xlabel="ranks", ylabel="held-out accuracy [%]", ylim=(0, 102))
ax.set_xticks(NUMBERS, map(str, NUMBERS))
ax.minorticks_off()
ax.legend(loc="lower left")
plt.show()

accuracy = {key: np.mean(found) for key, found in held_out.items()}
assert accuracy["not scaled", 1] > 93
assert all(accuracy[way, k] > accuracy["not scaled", 1] - 4 for way in WAYS for k in (2, 4))
for k in (2, 4, 8):
    assert abs(accuracy["scaled, with warmup", k] - accuracy["not scaled", 1]) < 3
assert accuracy["scaled, with warmup", 8] > accuracy["not scaled", 8] + 0.5
assert accuracy["scaled, with warmup", 8] > accuracy["scaled", 8] + 4
assert all(accuracy[way, 16] < accuracy["not scaled", 1] - 3 for way in WAYS)

# %% [markdown]
# Up to 4 ranks, all three ways come close to one rank. With 8 ranks, the scaled rate with a
# warmup comes closest. With 16 ranks, none of them comes close.
#
# ## What to change, in order
#
# 1. **Keep the batch of a rank, and scale the rate.** Leave `batch_size` as it was in one
#    process, and pass the rate through `ddl.scale_lr`. [Goyal et al.,
#    2017](https://arxiv.org/abs/1706.02677) trained ResNet-50 on ImageNet by this rule with
#    batches of up to 8192 samples, without a loss of accuracy.
# 2. **Add a warmup.** `ddl.LearningRateWarmup` replaces `scale_lr`. Goyal et al. let the rate
#    rise over the first 5 epochs. They needed the warmup for large batches, because the linear
#    rule fails while the weights change fast. An epoch of ImageNet has many more steps than one
#    of the digits: count the steps of a warmup, not only its epochs.
# 3. **With Adam, use the square root.** `ddl.scale_lr(rate, rule="sqrt")` multiplies the rate by
#    the square root of the number of ranks. This is one part of the rule that [Malladi et al.,
#    2022](https://arxiv.org/abs/2205.10287) derive for Adam and RMSprop. The other parts change
#    the betas and epsilon: [The four lines](../four_lines.md) has the whole rule as a table.
#    [McCandlish et al., 2018](https://arxiv.org/abs/1812.06162) found that the best rate of Adam
#    grows with the batch size by a power between 0.5 and 1, depending on the task.
# 4. **Use fewer ranks, smaller batches, or more epochs.** Beyond some batch size no rule helps.
#    [Shallue et al., 2018](https://arxiv.org/abs/1811.03600) measured the steps that a training
#    needs for a given error. At first, twice the batch halves the steps; then it saves less and
#    less; finally it saves nothing. Where this happens differs greatly between models and data
#    sets. They found no sign that large batches by themselves harm the held-out error: what harms
#    it are settings that were tuned for another batch size, and too few steps. McCandlish et al.
#    predict the largest useful batch from the noise of the gradients. It grows during a training,
#    while the loss falls.
# 5. **Check what depends on the batch or on the rate.** The velocity of SGD contains the rates of
#    past steps. `LearningRateWarmup` corrects it while the rate rises, as Goyal et al. recommend;
#    callbacks that change the rate later do so with `correct_momentum=True`. `BatchNormalization`
#    normalizes by the samples of one rank. This is what Goyal et al. do, with 32 images on each
#    worker. If a rank has only a few samples, use `ddl.SyncBatchNormalization`, which uses those
#    of all ranks.
#
# Change one of these at a time, and compare the means of several seeds. The bands in the first
# figure show how far apart two seeds of the same setting can be.
#
# ## Exercise
#
# With 16 ranks, none of the three ways reaches the accuracy of one rank. Try the square root
# rule, which multiplies the rate by 4: train 16 ranks with `rule="sqrt"` and the same warmup,
# from the same seeds, by `share`. Compare the mean accuracy with those of the other ways. Then
# think of a change that makes the training of 16 ranks equal to that of 8.
#
# ## Solution

# %% tags=["hide-cell"]
plan = [{"seed": seed, "ranks": 16, "rule": "sqrt", "warmup": WARMUP} for seed in SEEDS]
accuracy["square root, with warmup", 16] = np.mean([100 - each["held-out"] for each in share(plan)])
for way, k in accuracy:
    if k == 16:
        print(f"{way:25} {accuracy[way, k]:5.1f} %")
assert accuracy["square root, with warmup", 16] > accuracy["scaled, with warmup", 16] + 5
assert accuracy["square root, with warmup", 16] > accuracy["not scaled", 16]

for job in alone:
    job.close()

# %% [markdown]
# The square root rule is the best of the four here, because its rate lies between too small and
# too large. 16 ranks with batches of 8 samples train as 8 ranks with batches of 16, with 8 times
# the rate: what counts is the number of samples in a step.
#
# What next: [The data](06_the_data.ipynb) is about the shards that the ranks train on, and [A
# search](09_search.ipynb) trains several rates and batch sizes side by side.
