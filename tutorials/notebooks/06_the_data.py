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
# # The data
#
# This notebook shows which sample goes to which rank, how samples are shuffled, and what happens
# when they do not divide evenly. It then measures a `tf.data` pipeline that reads and decodes image
# files, step by step from a plain Python loop on. You should know the [four
# lines](../four_lines.md); some knowledge of `tf.data` helps. [The data](../data.md) is the
# reference for `split_data`.
#
# To run it, install the extras `tensorflow`, `mpich` and `tutorials`, and open it in Jupyter: see
# [Notebooks](README.md).

# %%
import os
import pathlib
import tempfile
import textwrap
import threading
import time

import easyddl as ddl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import ListedColormap
from PIL import Image
from sklearn.datasets import load_digits

ranks = ddl.Ranks(np=2)

# %% [markdown]
# ## Which sample goes to which rank
#
# Every rank passes all samples to `split_data` and gets its own shard back. Of `k` ranks, rank `r`
# gets the samples `r`, `r + k`, `r + 2k` and so on. No rank asks another one, so the split costs no
# message.
#
# Here the samples are their own numbers. `ddl.allgather` puts the shards of all ranks one after
# another. The assertion runs on the ranks. If it failed on one of them, the cell would raise a
# `RankError`.


# %%
def shard_of_numbers(count):
    """This rank's shard of the numbers below `count`."""
    mine = ddl.split_data(np.arange(count))
    everyones = ddl.allgather(mine)
    assert len(everyones) == count  # no number is missing
    assert len(np.unique(everyones)) == count  # and none is in two shards
    return mine


shards = ranks.run(shard_of_numbers, args=(16,))
for rank, shard in enumerate(shards):
    print(f"rank {rank}: {shard}")
assert all(np.array_equal(shard, np.arange(16)[rank::2]) for rank, shard in enumerate(shards))

# %% [markdown]
# Pass images and labels in one call. They are split alike, so each label stays with its image.

# %%
images, labels = load_digits(return_X_y=True)


def shard_of_digits(images, labels):
    """This rank's images and labels."""
    return ddl.split_data(images, labels)


for rank, (x, y) in enumerate(ranks.run(shard_of_digits, args=(images[:100], labels[:100]))):
    assert np.array_equal(x, images[rank:100:2])
    assert np.array_equal(y, labels[rank:100:2])

# %% [markdown]
# ## Shuffle
#
# There are three choices:
#
# - `shuffle=False`, the default: the order of the data decides which rank gets a sample. `fit`
#   shuffles the samples within each shard in every epoch, but they stay in their shard.
# - `shuffle=True`: one permutation, the same on all ranks, before the split. After it the samples
#   stay in their shard too. Use it for data that are sorted or repeat with a period.
# - `shuffle="epoch"`: a new permutation of all samples in every epoch, and then the split ([Goyal
#   et al., 2017](https://arxiv.org/abs/1706.02677)). After enough epochs, each rank has seen all
#   samples.
#
# With `"epoch"` the shard of an array is a `PyDataset`, which yields batches. `DDLCallback` passes
# the number of the epoch to it. The function below does so itself.


# %%
def shards_by_epoch(shuffle, count, epochs):
    """The samples of this rank in each epoch, as an array with a row for each epoch."""
    if shuffle != "epoch":
        return np.stack([ddl.split_data(np.arange(count), shuffle=shuffle)] * epochs)
    data = ddl.split_data(np.arange(count), shuffle="epoch", batch_size=4)
    rows = []
    for epoch in range(epochs):
        data.set_epoch(epoch)
        rows.append(np.concatenate([data[batch][0] for batch in range(len(data))]))
    return np.stack(rows)


def owners(shards, count):
    """The rank of each sample in each epoch."""
    table = np.full((len(shards[0]), count), -1)
    for rank, rows in enumerate(shards):
        for epoch, row in enumerate(rows):
            assert (table[epoch, row] == -1).all()  # no other rank has these samples
            table[epoch, row] = rank
    assert (table >= 0).all()  # every sample is in a shard, in every epoch
    return table


SAMPLES, EPOCHS = 24, 4
tables = {}
for shuffle in (False, True, "epoch"):
    shards = ranks.run(shards_by_epoch, args=(shuffle, SAMPLES, EPOCHS))
    tables[shuffle] = owners(shards, SAMPLES)

assert (tables[False] == np.arange(SAMPLES) % 2).all()
assert (tables[True] == tables[True][0]).all()  # the same in every epoch
assert (tables[True] != tables[False]).any()
assert len(np.unique(tables["epoch"], axis=0)) == EPOCHS  # no two epochs are alike

# %%
RANK_COLOURS = ListedColormap(["tab:blue", "tab:orange"])

figure, plots = plt.subplots(3, 1, figsize=(7, 4.2), sharex=True, layout="constrained")
for axes, (shuffle, table) in zip(plots, tables.items(), strict=True):
    axes.pcolormesh(table, cmap=RANK_COLOURS, edgecolors="white")
    axes.invert_yaxis()
    axes.set_title(f"shuffle={shuffle!r}", fontsize=10)
    axes.set(ylabel="epoch", yticks=np.arange(EPOCHS) + 0.5, yticklabels=range(EPOCHS))
places = np.arange(0, SAMPLES, 4)
plots[-1].set(xlabel="sample (blue: rank 0, orange: rank 1)", xticks=places + 0.5)
plots[-1].set_xticklabels(places)
plt.show()

# %% [markdown]
# ## When the samples do not divide evenly
#
# With 2 ranks and 17 samples, one rank has a sample more than the other, or one sample is left out.
# `split_data(remainder=...)` decides: `"drop"`, the default, leaves out the last sample, and
# `"keep"` gives it to rank 0.
#
# Ranks can then have different numbers of batches. They differ much more if you divide the data
# yourself, such as one file for each rank. `DDLCallback(uneven=...)` decides what happens:
#
# - `"join"`, the default: a rank that has run out of batches joins the steps of the others with
#   weight zero.
# - `"truncate"`: the epoch ends with the first step in which a rank has no batch.
# - `"error"`: the training fails.
#
# Which samples does the training see? The model below has one weight for each sample. Sample `i`
# has a one at position `i` and zeros elsewhere, so it changes only weight `i`. After one epoch, the
# weights that are not zero show which samples some rank has trained on.


# %%
def marked_samples(count, how):
    """This rank's samples and labels, split by `split_data` or into 13 and the rest."""
    x, y = np.eye(count, dtype="float32"), np.ones((count, 1), "float32")
    if how != "13 and 4":
        return ddl.split_data(x, y, remainder=how)
    return (x[:13], y[:13]) if ddl.rank() == 0 else (x[13:], y[13:])


def train_on_marked_samples(count, how, uneven):
    """Trains one epoch with batches of 4. Returns the size of this rank's shard and the weights."""
    import keras

    x, y = marked_samples(count, how)
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.layers.Input((count,)), layer])
    model.compile(keras.optimizers.SGD(1.0), loss="mse")
    callbacks = [ddl.DDLCallback(uneven=uneven), ddl.DDLGlobalVariablesCallback()]
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=callbacks)
    return len(x), model.get_weights()[0][:, 0]


CASES = [("drop", "join"), ("keep", "join"), ("13 and 4", "join"), ("13 and 4", "truncate")]
weights, rows = {}, []
for case in CASES:
    (first, mine), (second, others) = ranks.run(train_on_marked_samples, args=(17, *case))
    assert np.array_equal(mine, others)  # both ranks have the same weights
    weights[case] = mine
    rows.append(f"{case[0]:9} {case[1]:9} {first:2} and {second}  {np.count_nonzero(mine)} of 17")
print("split     uneven    shards    samples seen", *rows, sep="\n")

assert np.flatnonzero(weights["drop", "join"] == 0).tolist() == [16]
assert np.count_nonzero(weights["keep", "join"]) == 17
assert np.count_nonzero(weights["13 and 4", "join"]) == 17
assert np.flatnonzero(weights["13 and 4", "truncate"] == 0).tolist() == [8, 9, 10, 11, 12]

# %% [markdown]
# With `"join"` no batch is lost. With `"truncate"`, rank 1 has no batch for the second step, and
# rank 0 does not use its third and fourth batch.
#
# With `"keep"` and `"join"` the result is that of one process with batches of 8. That process takes
# three steps, with 8, 8 and 1 samples. All weights are zero before, so the gradient of the mean
# squared error of a batch of `n` samples is `-2/n` for the weight of each of them. The first 16
# weights must therefore be 2/8, and the last one 2.

# %%
one_process = np.array([2 / 8] * 16 + [2 / 1])
assert np.array_equal(weights["keep", "join"], one_process)

# %% [markdown]
# ## Image files
#
# The rest of this notebook reads files. The cell below writes digits as JPEG files of 640 by 640
# pixels in colour, so that there is something to decode. The name of a file contains its label.

# %%
FILES, BATCH = 320, 16


def write_files(folder, count):
    """Writes JPEG files of digits. Returns their paths."""
    paths = []
    for number in range(count):
        large = np.kron(images[number].reshape(8, 8), np.ones((80, 80))) * (255 / 16)
        path = pathlib.Path(folder, f"{number:04}_{labels[number]}.jpg")
        Image.fromarray(large.astype("uint8")).convert("RGB").save(path, quality=90)
        paths.append(str(path))
    return paths


folder = tempfile.TemporaryDirectory()
paths = write_files(folder.name, FILES)
kilobytes = sum(pathlib.Path(path).stat().st_size for path in paths) / 1000
print(f"{len(paths)} files, {kilobytes / len(paths):.0f} kB each")

# %% [markdown]
# ## Split first, decode afterwards
#
# The split decides how much work a rank has. `split_data` of file names gives each rank its names,
# and the rank decodes its own files. `split_data` of decoded images gives each rank its images,
# too, but the rank has decoded all files before, and throws away those of the other ranks. The
# images are the same.
#
# The cell counts the files that each rank reads and decodes in two epochs. `cache()` keeps the
# decoded images of the first epoch in memory.


# %%
def decode(content):
    """The image of 64 by 64 pixels in a JPEG file, between 0 and 1."""
    import tensorflow as tf

    image = tf.image.convert_image_dtype(tf.io.decode_jpeg(content, channels=3), tf.float32)
    image = tf.image.resize(image, (64, 64))
    return tf.ensure_shape(image, (64, 64, 3))


def count_decoded(paths, order):
    """Returns the number of files decoded in each of two epochs, and the mean of each image."""
    import tensorflow as tf

    read = []

    def read_and_count(path):
        read.append(path)
        return pathlib.Path(path.decode()).read_bytes()

    def load(path):
        return decode(tf.numpy_function(read_and_count, [path], tf.string))

    names = tf.data.Dataset.from_tensor_slices(paths)
    if order == "decode, split":
        dataset = ddl.split_data(names.map(load))
    else:
        dataset = ddl.split_data(names).map(load)
    if order == "split, decode, cache":
        dataset = dataset.cache()
    counts = []
    for _ in range(2):
        read.clear()
        means = [float(tf.reduce_mean(image)) for image in dataset]
        counts.append(len(read))
    return counts, means


decoded, means = {}, {}
print(f"{'order':21} rank   epoch 1  epoch 2")
for order in ("decode, split", "split, decode", "split, decode, cache"):
    for rank, (counts, found) in enumerate(ranks.run(count_decoded, args=(paths, order))):
        decoded[order, rank], means[order, rank] = counts, found
        print(f"{order:21} {rank:4} {counts[0]:9} {counts[1]:8}")

for rank in range(2):
    assert decoded["decode, split", rank] == [FILES, FILES]
    assert decoded["split, decode", rank] == [FILES // 2, FILES // 2]
    assert decoded["split, decode, cache", rank] == [FILES // 2, 0]
    assert means["decode, split", rank] == means["split, decode", rank]

# %% [markdown]
# With `k` ranks, splitting first divides the work by `k`. Decoding first does the work `k` times,
# on the same cores if the ranks share a host. So split as early as possible: file names, not
# images.
#
# The memory that `cache()` takes is divided too, because each rank keeps only its shard. Put
# `cache()` after the decoding, and before random changes of the images, which must differ from
# epoch to epoch. It does not go with `shuffle="epoch"`, which gives a rank other samples in each
# epoch.
#
# ## Threads
#
# `import easyddl` gives each rank its share of the cores. TensorFlow has two pools of threads: one
# divides a large operation among cores (intra-op), the other runs several operations at a time
# (inter-op). Each rank gets as many threads in a pool as it has cores, and at least two inter-op
# threads, because one may wait in an exchange of gradients while the other computes.


# %%
def threads_of_rank():
    """The CPUs and the numbers of threads of this rank."""
    import tensorflow as tf

    ddl.init()  # the ranks compare their CPUs
    pools = tf.config.threading
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "intra-op": pools.get_intra_op_parallelism_threads(),
        "inter-op": pools.get_inter_op_parallelism_threads(),
    }


pools = ranks.run(threads_of_rank)
for rank, found in enumerate(pools):
    print(f"rank {rank}: {found}")
    assert 1 <= found["intra-op"] <= found["cpus"]
    assert found["inter-op"] >= 2

# %% [markdown]
# The function of `map` runs on the inter-op threads. `num_parallel_calls` limits how many calls
# are active at a time. At most as many are active as there are threads, and it can be fewer. That
# is right for decoding, which needs a core. It is too few for a storage that answers late, such
# as a network file system: a call that waits for it needs no core, but it occupies a thread.
#
# A pipeline can have threads of its own
# ([`tf.data.ThreadingOptions`](https://www.tensorflow.org/api_docs/python/tf/data/ThreadingOptions)).
# The cell counts how many calls are active at a time with `num_parallel_calls=8`. Each of them
# waits 20 milliseconds.


# %%
def with_own_threads(dataset, threads):
    """The dataset with a pool of its own threads."""
    import tensorflow as tf

    options = tf.data.Options()
    options.threading.private_threadpool_size = threads
    return dataset.with_options(options)


def most_active_calls(calls, own_threads):
    """The largest number of calls of a `map` that wait at the same time."""
    import tensorflow as tf

    lock = threading.Lock()
    active, most = 0, 0

    def wait(number):
        nonlocal active, most
        with lock:
            active += 1
            most = max(most, active)
        time.sleep(0.02)
        with lock:
            active -= 1
        return number

    dataset = tf.data.Dataset.range(64).map(
        lambda number: tf.numpy_function(wait, [number], tf.int64), num_parallel_calls=calls
    )
    if own_threads:
        dataset = with_own_threads(dataset, own_threads)
    for _ in dataset:
        pass
    return most


CALLS = 8
shared = ranks.run(most_active_calls, args=(CALLS, 0))
own = ranks.run(most_active_calls, args=(CALLS, CALLS))
for rank in range(2):
    print(f"rank {rank}: {shared[rank]} calls on TensorFlow's threads, {own[rank]} on own threads")
    assert shared[rank] <= pools[rank]["inter-op"]
    assert shared[rank] <= own[rank] <= CALLS
    assert own[rank] > 2

# %% [markdown]
# ## A pipeline that keeps up
#
# Now the pipeline is built up, and each version is measured on both ranks at once:
#
# 1. **loop**: Python reads and decodes one file after another.
# 2. **map**: the same in `tf.data`, one call at a time.
# 3. **prefetch**: while a step runs, the pipeline already makes the next batches.
# 4. **parallel**: with `num_parallel_calls=8` in addition.
# 5. **own threads**: with a pool of 8 threads in addition.
# 6. **cache**: with `cache()` in addition.
#
# The consumer takes a batch and sleeps for 20 milliseconds. This stands for a step on a GPU, during
# which the CPU has time for the pipeline. There are two storages: the local files, and a slow
# storage that answers 5 milliseconds late. The second epoch is measured.

# %%
STEP, DELAY = 0.02, 0.005  # seconds
VERSIONS = {
    "loop": None,
    "map": {},
    "prefetch": {"prefetch": True},
    "parallel": {"prefetch": True, "calls": CALLS},
    "own threads": {"prefetch": True, "calls": CALLS, "threads": CALLS},
    "cache": {"prefetch": True, "calls": CALLS, "threads": CALLS, "cache": True},
}


def reader(delay):
    """A function that reads a file from a storage that answers `delay` seconds late."""

    def read(path):
        if delay:
            time.sleep(delay)
        return pathlib.Path(path.decode()).read_bytes()

    return read


def batches_of_loop(paths, delay):
    """Yields batches of this rank's images, without `tf.data`."""
    read, mine = reader(delay), ddl.split_data(np.array(paths))
    for begin in range(0, len(mine), BATCH):
        names = mine[begin : begin + BATCH]
        yield np.stack([decode(read(name.encode())).numpy() for name in names])


def batches_of_dataset(paths, delay, prefetch=False, calls=None, threads=None, cache=False):
    """A dataset of batches of this rank's images."""
    import tensorflow as tf

    def load(path):
        return decode(tf.numpy_function(reader(delay), [path], tf.string))

    dataset = ddl.split_data(tf.data.Dataset.from_tensor_slices(paths))
    dataset = dataset.map(load, num_parallel_calls=calls)
    if cache:
        dataset = dataset.cache()
    dataset = dataset.batch(BATCH)
    if prefetch:
        dataset = dataset.prefetch(tf.data.AUTOTUNE)
    return with_own_threads(dataset, threads) if threads else dataset


def consume(batches):
    """Takes all batches, with a pause for each. Returns the seconds, and the mean of each image."""
    taken, begin = [], time.perf_counter()
    for batch in batches:
        taken.append(batch)
        time.sleep(STEP)
    seconds = time.perf_counter() - begin
    return seconds, np.concatenate(taken).mean(axis=(1, 2, 3))


def measure(paths, delay, version):
    """Consumes this rank's images for two epochs. Returns the result of the second."""
    settings = VERSIONS[version]
    if settings is None:
        consume(batches_of_loop(paths, delay))
        batches = batches_of_loop(paths, delay)
    else:
        batches = batches_of_dataset(paths, delay, **settings)
        consume(batches)
    ddl.barrier()  # both ranks begin together
    return consume(batches)


# %%
speeds = {}
for storage, delay in (("local", 0), ("slow", DELAY)):
    for version in VERSIONS:
        results = ranks.run(measure, args=(paths, delay, version))
        speeds[storage, version] = FILES / max(seconds for seconds, _ in results)
        for rank, (_, found) in enumerate(results):  # all versions yield the same images
            assert np.allclose(found, means["split, decode", rank], atol=1e-5)

limit = 2 * BATCH / STEP
print("samples per second of both ranks")
print(f"{'version':12} {'local':>8} {'slow':>8}")
for version in VERSIONS:
    print(f"{version:12} {speeds['local', version]:8.0f} {speeds['slow', version]:8.0f}")
print(f"{'steps alone':12} {limit:8.0f} {limit:8.0f}")
assert max(speeds.values()) <= limit

# %%
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
places = np.arange(len(VERSIONS))
for shift, storage in ((-0.2, "local"), (0.2, "slow")):
    heights = [speeds[storage, version] for version in VERSIONS]
    axes.bar(places + shift, heights, 0.4, label=f"{storage} storage")
axes.axhline(limit, color="black", linestyle="--", linewidth=1, label="steps alone")
axes.set(ylabel="samples per second, both ranks", xticks=places, xticklabels=VERSIONS)
figure.legend(loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# What each version can change:
#
# - **Map** has costs of its own for a Python function, and can be slower than the loop.
# - **Prefetch** lets the pipeline work during the step. A batch then costs the longer of the two,
#   the step or its decoding, in place of their sum. If the step itself computes on the CPU, both
#   need the same cores, and the gain is small.
# - **Parallel calls** divide the decoding among the cores of a rank. A rank with one core decodes
#   no faster with eight calls than with one.
# - **Own threads** help where calls wait, as with the slow storage: eight calls wait at the same
#   time. If nothing waits, more threads than cores bring nothing, and switching between them can
#   cost time.
# - **Cache** leaves neither reading nor decoding in later epochs, so that only the steps remain.
#
# These are the rules that follow:
#
# - Split file names, then `shuffle`, `map`, `batch` and `prefetch`, in this order.
# - Pass `num_parallel_calls=tf.data.AUTOTUNE` if the files are local: the pipeline then uses the
#   threads of its rank.
# - For a slow storage, give the pipeline 8 or more threads of its own, and as many calls. Each rank
#   of a host has such a pool, so with `k` ranks the storage gets `k` times as many requests at
#   once.
#
# ## Shuffled file names are safe
#
# A dataset that is shuffled before the split needs the same order on all ranks, or the shards
# overlap. `split_data` refuses a dataset whose order would differ:


# %%
def shuffle_before_split():
    """Returns the message of the error."""
    import tensorflow as tf

    try:
        ddl.split_data(tf.data.Dataset.range(16).shuffle(16))
    except ValueError as error:
        return str(error)


messages = ranks.run(shuffle_before_split)
print(textwrap.fill(messages[0], 100))
assert messages[0] == messages[1] is not None

# %% [markdown]
# After the split, each rank may shuffle its own shard as it likes. Or `split_data` shuffles for all
# ranks: with `shuffle="epoch"`, file names move between ranks in each epoch, and only names are
# shuffled, not images. The last cell trains a small network in this way.


# %%
def train(paths, epochs):
    """Trains on the files. Returns the accuracies of the epochs and the weights."""
    import keras
    import tensorflow as tf

    def load(path):
        label = tf.strings.to_number(tf.strings.substr(path, -5, 1), tf.int32)
        return tf.image.resize(decode(tf.io.read_file(path)), (8, 8)), label

    # TensorFlow would warn that this process has compiled many steps, one for each `fit`.
    tf.get_logger().setLevel("ERROR")
    keras.utils.set_random_seed(1)
    names = tf.data.Dataset.from_tensor_slices(paths)
    dataset = ddl.split_data(names, shuffle="epoch")
    dataset = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.batch(BATCH).prefetch(tf.data.AUTOTUNE)
    model = keras.Sequential(
        [
            keras.layers.Input((8, 8, 3)),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.Adam(ddl.scale_lr(0.005, rule="sqrt"))
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
    history = model.fit(dataset, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    return history.history["accuracy"], model.get_weights()


(accuracies, first), (same, second) = ranks.run(train, args=(paths, 8))
print("accuracy on the training files:", " ".join(f"{accuracy:.2f}" for accuracy in accuracies))
assert accuracies == same  # the metrics are those of all ranks' samples
assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
assert accuracies[0] < 0.8 < 0.9 < accuracies[-1]

# %% [markdown]
# ## Exercise
#
# A camera takes pictures of ten products on a belt, which always pass in the same order: the labels
# are `0, 1, ..., 9, 0, 1, ...`. Find out how many samples of each label each of the two ranks gets
# with `shuffle=False`. Then choose an argument of `split_data` that gives each rank samples of all
# labels. Why does the first split harm a training with batch normalization?

# %% [markdown]
# ## Solution
#
# The period of 10 is a multiple of 2, so one rank gets the even labels and the other one the odd
# labels. Batch normalization computes mean and variance from the batch of a rank. With this split
# they are those of five products, and differ between the ranks. `shuffle=True` removes the period.


# %% tags=["hide-cell"]
def counts_of_labels(shuffle):
    """How many samples of each label this rank gets."""
    mine = ddl.split_data(np.arange(1000) % 10, shuffle=shuffle)
    return np.bincount(mine, minlength=10)


split_by_period = ranks.run(counts_of_labels, args=(False,))
split_shuffled = ranks.run(counts_of_labels, args=(True,))
print("shuffle=False", *split_by_period, sep="\n")
print("shuffle=True", *split_shuffled, sep="\n")

assert split_by_period[0].tolist() == [100, 0] * 5
assert split_by_period[1].tolist() == [0, 100] * 5
assert all((counts > 0).all() for counts in split_shuffled)
assert sum(split_shuffled).tolist() == [100] * 10

# %%
ranks.close()
folder.cleanup()

# %% [markdown]
# ## What next
#
# - [Checkpoints](07_checkpoints.ipynb): how a training goes on after an interruption, with the same
#   samples in the same order.
# - [Scaling](04_scaling.ipynb): how fast many ranks train if the data keep up.
# - [The data](../data.md): generators, PyTorch's `DataLoader`, Grain, and what must be the same on
#   all ranks.
