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
# # Scaling
#
# This notebook measures how many images per second a job trains on with 1, 2, 4 and 8 ranks, and
# compares that with the ideal. It then shows where the time of a step goes, and predicts the
# efficiency on many hosts with a slower or a faster network. You should know what a rank and an
# allreduce are: see [The first four lines](01_first_four_lines.ipynb) and [Allreduce,
# seen](03_allreduce_seen.ipynb). What scaling does to the accuracy is the subject of
# [Accuracy](05_accuracy.ipynb).
#
# To run it, install the extras `tensorflow`, `mpich` and `tutorials`, and open it in Jupyter: see
# [Notebooks](README.md).

# %% [markdown]
# ## Strong and weak scaling
#
# There are two questions, and two kinds of scaling that answer them.
#
# - **Strong scaling** keeps the global batch fixed. With `k` ranks, each rank takes `1/k` of it.
#   The training computes the same steps, and the question is how much sooner it ends. The work of a
#   rank shrinks with `k`, but the gradients that the ranks exchange keep their size ([Amdahl,
#   1967](https://doi.org/10.1145/1465482.1465560)).
# - **Weak scaling** keeps the batch of each rank fixed. The global batch grows with `k`, and the
#   question is how many more images the job takes in the same time. Both the work of a rank and the
#   gradients keep their size ([Gustafson, 1988](https://doi.org/10.1145/42411.42415)).
#
# The **throughput** is the number of images per second of all ranks together. With `k` ranks on `k`
# cores the ideal throughput is `k` times that of one rank. More ranks than cores cannot compute
# more than the cores do. So the ideal is `min(k, cores)` times the throughput of one rank, and
#
# $$\text{efficiency}(k) =
#   \frac{\text{throughput}(k)}{\min(k, \text{cores}) \cdot \text{throughput}(1)}.$$
#
# On a laptop with two cores the ideal at 4 and at 8 ranks is therefore that at 2 ranks. The
# efficiency then says how much it costs that ranks share cores. It says nothing about a machine
# with 8 cores.

# %% tags=["measurement"]
import dataclasses
import json
import math
import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import easyddl as ddl
import matplotlib.pyplot as plt
import numpy as np
from easyddl import profiling

RANKS = (1, 2, 4, 8)
CORES = len(os.sched_getaffinity(0))
print(f"{CORES} cores")

# %% [markdown]
# These are the logical CPUs that this notebook's process may use. Two logical CPUs can share one
# physical core, and together they compute less than twice as much as one of them. The measured
# efficiency is lower there.
#
# ## Two networks
#
# The first network is that of [mnist_cnn.py](../mnist_cnn.py), for images of 28 by 28 pixels. It
# has few parameters.
#
# The second is ResNet-34 ([He et al., 2015](https://arxiv.org/abs/1512.03385)) for images of
# CIFAR's size, 32 by 32 pixels in three colours, with 10 classes. Four stages of 3, 4, 6 and 3
# basic blocks have 64, 128, 256 and 512 channels. As in the paper's networks for CIFAR, the first
# convolution is 3 by 3 and no pooling follows it. `width` is the number of channels of the first
# stage: with `width=16` the network has about a sixteenth of the parameters.


# %% tags=["measurement"]
def mnist_cnn():
    """The network of mnist_cnn.py, compiled."""
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.001), loss="sparse_categorical_crossentropy")
    return model


def normalized_convolution(x, channels, size, strides=1):
    """A convolution without a bias, and batch normalization."""
    from keras import layers

    x = layers.Conv2D(channels, size, strides, padding="same", use_bias=False)(x)
    return layers.BatchNormalization()(x)


def basic_block(x, channels, strides):
    """Two convolutions, and a shortcut around them."""
    from keras import layers

    shortcut = x
    if strides != 1 or x.shape[-1] != channels:
        shortcut = normalized_convolution(x, channels, 1, strides)
    y = layers.ReLU()(normalized_convolution(x, channels, 3, strides))
    y = normalized_convolution(y, channels, 3)
    return layers.ReLU()(layers.Add()([shortcut, y]))


def resnet34(width=64):
    """ResNet-34 for 10 classes of images of 32 by 32 pixels, compiled."""
    import keras
    from keras import layers

    inputs = layers.Input((32, 32, 3))
    x = layers.ReLU()(normalized_convolution(inputs, width, 3))
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            strides = 2 if stage > 0 and block == 0 else 1
            x = basic_block(x, width * 2**stage, strides)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(x))
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    return model


# %% [markdown]
# The images are random numbers, because their content does not change the speed. Two cores are slow
# for ResNet-34: one image takes hundreds of times as many multiplications as one of the MNIST
# network. Its batches are therefore small and it takes few steps. This notebook trains it on 2
# ranks only, and reads its times on 1, 2, 4 and 8 ranks from a file that comes with the notebook.


# %% tags=["measurement"]
@dataclasses.dataclass
class Network:
    """A network and how it is measured."""

    name: str
    build: Callable
    image: tuple  # the shape of an image
    rank_batch: int  # images of each rank in a step, for weak scaling
    global_batch: int  # images of all ranks in a step, for strong scaling
    steps: int  # that are measured for each size of a batch
    ranks: tuple  # the numbers of ranks on which this notebook trains it

    def batch(self, scaling, size):
        """The number of images that each of `size` ranks takes in a step."""
        return self.rank_batch if scaling == "weak" else self.global_batch // size


NETWORKS = (
    Network("MNIST's CNN", mnist_cnn, (28, 28, 1), 32, 64, 20, RANKS),
    Network("ResNet-34", resnet34, (32, 32, 3), 4, 8, 5, (2,)),
)
WARM_UP = 2  # steps that are not measured: the first one compiles the network

# %% [markdown]
# ## Measure
#
# One rank must use one core, or there is no speedup to see: by default a single rank uses all cores
# of its host, because TensorFlow divides large operations among threads. The environment variables
# below give each rank one compute thread, and `use_one_cpu` binds each rank to one CPU.

# %% tags=["measurement"]
# Two threads may run operations: one can wait in an exchange while the other computes.
ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}


def use_one_cpu():
    """Binds all threads of this rank to one CPU. Returns the number of the CPU."""
    cpus = sorted(os.sched_getaffinity(0))
    mine = cpus[ddl.rank() % len(cpus)]
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {mine})
    return mine


# %% [markdown]
# `measure` trains a few steps with `fit` and two of the [four lines](../four_lines.md). One `fit`
# takes batches of both sizes, so that the network is compiled only once. The result is the median
# time of a step, which a few disturbed steps do not change.


# %% tags=["measurement"]
def measure(network):
    """Trains a few steps on this rank.

    Returns:
        Dict of the median seconds of a step, by the size of this rank's batch, and the number of
        trainable parameters.
    """
    import keras

    sizes = sorted({network.batch(scaling, ddl.size()) for scaling in ("weak", "strong")})
    steps = WARM_UP + network.steps
    random = np.random.default_rng(ddl.rank())
    images = random.random((max(sizes), *network.image), dtype=np.float32)
    labels = random.integers(0, 10, max(sizes))

    def batches():
        for size in sizes:
            for _ in range(steps):
                yield images[:size], labels[:size]

    ends = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(time.perf_counter())
    )
    model = network.build()
    model.fit(
        batches(),
        steps_per_epoch=len(sizes) * steps,
        shuffle=False,
        verbose=0,
        callbacks=[ddl.DDLCallback(), clock, ddl.DDLGlobalVariablesCallback()],
    )
    durations = np.diff(ends, prepend=math.nan).reshape(len(sizes), steps)[:, WARM_UP:]
    medians = dict(zip(sizes, np.median(durations, axis=1).tolist(), strict=True))
    return medians, sum(math.prod(weight.shape) for weight in model.trainable_weights)


def allreduce_seconds(count):
    """The median seconds of an allreduce of `count` numbers."""
    data = np.ones(count, np.float32)
    times = []
    for _ in range(WARM_UP + 5):
        begin = time.perf_counter()
        assert ddl.allreduce(data, op="sum")[0] == ddl.size()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[WARM_UP:])


# %% [markdown]
# Each number of ranks is a job of its own. The job with two ranks also records a timeline, which a
# later section reads.

# %%
folder = tempfile.TemporaryDirectory()
BUCKETS = {"EASYDDL_BUCKET_BYTES": str(4 << 20)}  # a later section explains it
step_seconds = {}  # by network, number of ranks and batch of a rank
parameters = {}  # by network
inside_seconds = {}  # by network: an allreduce of its gradients between two ranks of one host

for size in RANKS:
    recording = {"EASYDDL_TIMELINE": folder.name, **BUCKETS} if size == 2 else {}
    with ddl.Ranks(np=size, env={**ONE_THREAD, **recording}) as ranks:
        assert len(set(ranks.run(use_one_cpu))) == min(size, CORES)
        for network in NETWORKS:
            if size not in network.ranks:
                continue
            results = ranks.run(measure, args=(network,))
            for batch in results[0][0]:
                seconds = max(medians[batch] for medians, _ in results)
                step_seconds[network.name, size, batch] = seconds
            parameters[network.name] = results[0][1]
            if size == 2:
                every = ranks.run(allreduce_seconds, args=(results[0][1],))
                inside_seconds[network.name] = max(every)

# %% [markdown]
# The times of ResNet-34 on 1, 2, 4 and 8 ranks come from a file: two cores need many minutes for
# them. `python tutorials/benchmarks/resnet_ranks.py` has written it. That program executes the
# cells above which define the network and `measure`. If your machine has more cores, start the
# program there, and then this notebook again.

# %%
recorded = json.loads(pathlib.Path("04_scaling.json").read_text())
cores = {"MNIST's CNN": CORES, "ResNet-34": recorded["cores"]}
here = step_seconds["ResNet-34", 2, 4]
for each in recorded["results"]:
    step_seconds["ResNet-34", each["ranks"], each["batch"]] = each["seconds"]

print(f"{recorded['command']}, on {recorded['cores']} cores, {recorded['date']}")
there = step_seconds["ResNet-34", 2, 4]
print(f"a step of ResNet-34 on 2 ranks: {there:.2f} s in the file, {here:.2f} s here")

# %% [markdown]
# ## Throughput
#
# The table gives images per second of all ranks together. The step of the slowest rank counts.


# %%
def throughput(network, scaling, size):
    """Images per second of all ranks."""
    batch = network.batch(scaling, size)
    return size * batch / step_seconds[network.name, size, batch]


def efficiency(network, scaling, size):
    """The throughput over the ideal one."""
    ideal = min(size, cores[network.name]) * throughput(network, scaling, 1)
    return throughput(network, scaling, size) / ideal


print(f"{'network':12} scaling  ranks batch/rank  images/s efficiency")
for network in NETWORKS:
    for scaling in ("strong", "weak"):
        for size in RANKS:
            print(
                f"{network.name:12} {scaling:8} {size:5} {network.batch(scaling, size):10} "
                f"{throughput(network, scaling, size):9.1f} "
                f"{efficiency(network, scaling, size):10.0%}"
            )

assert len(step_seconds) == sum(
    len({network.batch(scaling, size) for scaling in ("weak", "strong")})
    for network in NETWORKS
    for size in RANKS
)

# %%
COLOURS = {"strong": "tab:blue", "weak": "tab:orange"}


def one_plot_per_network():
    """A figure with a plot for each network."""
    figure, plots = plt.subplots(1, len(NETWORKS), figsize=(7, 3.6), layout="constrained")
    for network, axes in zip(NETWORKS, plots, strict=True):
        axes.set_title(network.name)
    return figure, plots


figure, plots = one_plot_per_network()
for network, axes in zip(NETWORKS, plots, strict=True):
    for scaling, colour in COLOURS.items():
        found = [throughput(network, scaling, size) for size in RANKS]
        ideal = [min(size, cores[network.name]) * found[0] for size in RANKS]
        axes.plot(RANKS, found, "o-", color=colour, label=scaling)
        axes.plot(RANKS, ideal, "--", color=colour, label=f"ideal, {scaling}")
    axes.set(xlabel="ranks", xscale="log", xticks=RANKS, xticklabels=RANKS)
    axes.set_ylim(bottom=0)
    axes.minorticks_off()
plots[0].set_ylabel("images per second")
figure.legend(*plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()

# %%
figure, plots = one_plot_per_network()
for network, axes in zip(NETWORKS, plots, strict=True):
    places = np.arange(len(RANKS))
    for shift, (scaling, colour) in zip((-0.2, 0.2), COLOURS.items(), strict=True):
        found = [100 * efficiency(network, scaling, size) for size in RANKS]
        axes.bar(places + shift, found, 0.4, color=colour, label=scaling)
    axes.axhline(100, color="black", linestyle="--", linewidth=1)
    axes.set(xlabel="ranks", xticks=places, xticklabels=RANKS)
plots[0].set_ylabel("efficiency in percent of the ideal")
figure.legend(*plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
plt.show()

# %% [markdown]
# How to read these plots:
#
# - **Strong scaling costs more than weak scaling when there are many ranks.** The batch of a rank
#   shrinks. Each step has costs that do not shrink with it: the exchange of the gradients, the
#   update of the weights, and the start of each operation.
# - **Two cores share more than the work.** They share the memory's bandwidth and often a cache, and
#   many processors run one core alone at a higher clock rate than two. So the efficiency can be
#   below 100 % even without any communication.
# - **With more ranks than cores** a rank that waits leaves its core to another rank. This can
#   fill the time of the exchange. But each step waits until all ranks have had a core, and a
#   large network becomes slower. One rank per core is the rule; measure before you start more.
#
# ## Where the time goes
#
# [Where the time goes](../timeline.md) explains the timeline that the job with two ranks has
# recorded. `easyddl timeline DIR` prints a summary of it. `easyddl.profiling` has the functions
# that this command uses. They split the time of a step into three parts:
#
# - **compute**: the forward pass, the backward pass and the update, while no gradients are sent;
# - **hidden communication**: gradients are reduced while the backward pass still computes others;
# - **exposed communication**: the backward pass has ended, and the step waits for the exchange.
#
# Communication includes the time that a rank waits for the other one. easyddl collects gradients
# in *buckets*, and exchanges a bucket as soon as all of its gradients are computed. The part that
# does so for one `fit` is a *reducer*. Reducers are numbered, so the first one belongs to the
# first network. The measurement above has set the size of a bucket, to show how it overlaps. By
# default easyddl takes one bucket on TensorFlow where a rank has one core of the only host, because
# [it is faster there](../performance.md#training).


# %%
CONTROL_WORD = 4 * 4  # bytes: four numbers in float32


def spans_by_reducer(spans):
    """The spans of the gradient buckets by the number of their reducer, with all training steps."""
    steps = [span for span in spans if span.name == "step"]
    buckets = [span for span in spans if span.name == "bucket"]
    numbers = sorted({bucket.values["reducer"] for bucket in buckets})
    return [
        steps + [bucket for bucket in buckets if bucket.values["reducer"] == number]
        for number in numbers
    ]


def buckets_of_step(spans, step):
    """The bytes of each bucket of gradients in a step."""
    buckets = [span.values for span in spans if span.name == "bucket"]
    return [bucket["bytes"] for bucket in buckets if bucket["step"] == step]


def shares(analysis):
    """The parts of a step in milliseconds: compute, hidden and exposed communication."""
    step = analysis.step_time / 1e6
    hidden = analysis.hidden / analysis.steps / 1e6
    exposed = analysis.exposed / analysis.steps / 1e6
    return {"compute": step - hidden - exposed, "hidden": hidden, "exposed": exposed}


bucket_counts, parts = {}, {}
for rank in profiling.read_timeline(folder.name):
    per_network = spans_by_reducer(list(rank.spans()))
    for network, spans in zip(NETWORKS, per_network, strict=True):
        analysis = profiling.analyze_overlap(spans)
        assert analysis.steps == WARM_UP + network.steps - 1  # all steps but the first
        for step in range(1, analysis.steps + 1):
            buckets = buckets_of_step(spans, step)
            assert sum(buckets) == 4 * parameters[network.name] + CONTROL_WORD
        bucket_counts[network.name] = len(buckets)
        parts[network.name, rank.rank] = shares(analysis)
parts = dict(sorted(parts.items()))

print(f"{'network':12} rank   compute    hidden   exposed   milliseconds per step")
for (name, rank), times in parts.items():
    print(f"{name:12} {rank:4} " + " ".join(f"{time:9.2f}" for time in times.values()))
print()
for name, count in bucket_counts.items():
    megabytes = 4 * parameters[name] / 1e6
    print(f"{name:12} {megabytes:6.2f} MB of gradients per step, in {count} bucket(s)")

# %% [markdown]
# The assertion on the bytes confirms what a rank hands over in every step: four bytes for each
# trainable parameter, and a [control
# word](../how_it_is_built.md#the-control-word-joins-and-stopping) of 16 bytes, in which the rank
# states the weight of its batch. The number of ranks and the size of the batch do not matter. The
# statistics of batch normalization are no trainable parameters, and do not take part.

# %%
PART_COLOURS = {"compute": "tab:gray", "hidden": "tab:green", "exposed": "tab:red"}

figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
names = [f"{name}, rank {rank}" for name, rank in parts]
begin = np.zeros(len(parts))
for part, colour in PART_COLOURS.items():
    percent = [100 * times[part] / sum(times.values()) for times in parts.values()]
    label = part if part == "compute" else f"{part} communication"
    axes.barh(names, percent, left=begin, color=colour, label=label)
    begin += percent
axes.invert_yaxis()
axes.set(xlabel="share of a step in percent", xlim=(0, 100))
figure.legend(loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# The gradients of the MNIST network fit into one bucket. It is complete when the backward pass
# ends, so nothing can be hidden. The gradients of ResNet-34 fill several buckets. The backward pass
# computes the last layer's gradients first, whose buckets are reduced while it computes the others.
#
# On one host the processors themselves move the gradients, so hidden communication also slows down
# the computation. Between hosts a network does most of this work.

# %%
assert bucket_counts["MNIST's CNN"] == 1
assert bucket_counts["ResNet-34"] > 1
folder.cleanup()

# %% [markdown]
# ## What a network would do
#
# easyddl's engine chooses among four algorithms between hosts by a cost model ([How it is
# built](../how_it_is_built.md#how-an-allreduce-works)). The model is part of the C++ code and has
# no Python name. This section writes its main part down again.
#
# An allreduce of `N` bytes over `h` hosts is hierarchical. The ranks of a host first add up their
# gradients in the host's memory (reduce-scatter), so that each holds the sums of one shard. Then
# each shard is exchanged between the hosts, and at last the ranks of a host share the result
# (all-gather). Between hosts, a reduce-scatter and an all-gather each send `(h-1)/h` of the data.
# So
#
# $$\frac{2(h-1)}{h} N$$
#
# bytes leave each host, however many ranks it has. This is less than twice `N`, even with very many
# hosts. It takes the time
#
# $$T(N, h) = 2 \log_2(h) \, \alpha + \frac{2(h-1)}{h} \frac{N}{B}$$
#
# where $B$ is the bandwidth of a host's network and $\alpha$ is the latency of a round of messages.
# This is the alpha-beta model ([Thakur, Rabenseifner and Gropp,
# 2005](https://doi.org/10.1177/1094342005051521)); the number of rounds is that of recursive
# halving and doubling. The engine counts a message like 32 KiB on the wire, so $\alpha$ is 32 KiB
# over $B$ here too.

# %%
MESSAGE_BYTES = 32 * 1024


def bytes_per_second(gigabits):
    """Converts Gbit/s."""
    return gigabits * 1e9 / 8


def bytes_that_leave_a_host(size, hosts):
    """Of an allreduce of `size` bytes."""
    return 2 * (hosts - 1) / hosts * size


def network_seconds(size, hosts, gigabits, messages=1):
    """The time between hosts of an allreduce of `size` bytes, sent in so many buckets."""
    rounds = 2 * math.ceil(math.log2(hosts))
    sent = messages * rounds * MESSAGE_BYTES + bytes_that_leave_a_host(size, hosts)
    return sent / bytes_per_second(gigabits)


resnet_bytes = 4 * parameters["ResNet-34"]
assert bytes_that_leave_a_host(resnet_bytes, 1) == 0
assert bytes_that_leave_a_host(resnet_bytes, 2) == resnet_bytes
assert bytes_that_leave_a_host(resnet_bytes, 10**6) < 2 * resnet_bytes

# %% [markdown]
# Is the formula any good? [Performance](../performance.md#several-hosts) has a table of measured
# times, on simulated hosts whose network moved 954 Mbit/s. The formula predicts each of them to
# within ten percent:

# %%
MEASURED = {  # by hosts and bytes: milliseconds, with two ranks on each host
    (2, 16 << 20): 141,
    (2, 100_000_000): 862,
    (4, 16 << 20): 223,
    (4, 100_000_000): 1360,
}
print(f"{'hosts':>5} {'MB':>6} {'measured':>9} {'predicted':>9}   milliseconds")
for (hosts, size), measured in MEASURED.items():
    predicted = 1000 * network_seconds(size, hosts, 0.954)
    print(f"{hosts:5} {size / 1e6:6.1f} {measured:9} {predicted:9.0f}")
    assert abs(predicted - measured) < 0.1 * measured

# %% [markdown]
# ## Predict the efficiency
#
# A step takes the time to compute, and the part of the communication that the backward pass does
# not hide:
#
# $$\text{step} = \text{compute} + \max(0, \text{communication} - \text{overlappable}).$$
#
# - **compute** is the measured step of one rank without any exchange.
# - **communication** is the time between the hosts, and the measured time of an allreduce between
#   two ranks of one host. In easyddl the two overlap in part, so the sum is an upper bound.
# - **overlappable** is limited in two ways. Gradients can be reduced during the backward pass only,
#   which takes two thirds of the time to compute: each layer has one product of matrices in the
#   forward pass and two in the backward pass. And the last bucket is complete only at the end of
#   it, so of `b` equal buckets `b - 1` can be hidden.
#
# The model assumes that the network sends at its full bandwidth, that all hosts are equally fast,
# and that moving data between hosts takes no time of the processors. A real cluster is slower.


# %%
def predicted_step(compute, size, buckets, hosts, gigabits, inside=0.0):
    """The seconds of a step with `size` bytes of gradients.

    Args:
        compute: Float. The seconds of a step without an exchange.
        size: Integer. The bytes of all gradients.
        buckets: Integer. The number of buckets.
        hosts: Integer. The number of hosts.
        gigabits: Number. The bandwidth of a host in Gbit/s.
        inside: Float. The seconds of the allreduce within a host.
    """
    communication = inside + network_seconds(size, hosts, gigabits, buckets)
    overlappable = min(2 / 3 * compute, communication * (buckets - 1) / buckets)
    return compute + max(0, communication - overlappable)


def predicted_efficiency(network, hosts, gigabits):
    """The efficiency of weak scaling, relative to one rank without an exchange."""
    compute = step_seconds[network.name, 1, network.rank_batch]
    step = predicted_step(
        compute,
        4 * parameters[network.name],
        bucket_counts[network.name],
        hosts,
        gigabits,
        inside_seconds[network.name],
    )
    return compute / step


HOSTS = [1, 2, 4, 8, 16, 32, 64]
BANDWIDTHS = [1, 10, 25, 100]  # Gbit/s

figure, plots = one_plot_per_network()
for network, axes in zip(NETWORKS, plots, strict=True):
    table = np.array(
        [[predicted_efficiency(network, h, gigabits) for h in HOSTS] for gigabits in BANDWIDTHS]
    )
    assert (np.diff(table, axis=0) >= 0).all()  # a faster network is never worse
    assert (np.diff(table, axis=1) <= 1e-12).all()  # more hosts are never better
    assert (table > 0).all() and (table <= 1).all()
    for gigabits, row in zip(BANDWIDTHS, table, strict=True):
        axes.plot(HOSTS, 100 * row, "o-", label=f"{gigabits} Gbit/s")
    axes.set(xlabel="hosts", xscale="log", xticks=HOSTS, xticklabels=HOSTS, ylim=(0, 105))
    axes.minorticks_off()
plots[0].set_ylabel("predicted efficiency in percent")
figure.legend(*plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()

# %% [markdown]
# What the curves show:
#
# - For large gradients the curves become flat, because `2(h-1)/h` approaches 2. From 8 to 64 hosts
#   the bytes that leave a host grow by an eighth only. The MNIST network's gradients are so small
#   that the rounds of messages count more than the bytes, and their number keeps growing with the
#   hosts.
# - The ratio of computation to bytes decides. These are steps of a single core, which take long. A
#   GPU computes the same step much faster, and needs a faster network in the same proportion. A
#   larger batch per rank has the opposite effect: more computation for the same bytes. From 10
#   Gbit/s on, the curves lie almost on one another, near 100 %, because a core computes so slowly.

# %%
assert math.isclose(bytes_that_leave_a_host(1, 64) / bytes_that_leave_a_host(1, 8), 1.125)
for network in NETWORKS:
    bytes_sent = bytes_that_leave_a_host(4 * parameters[network.name], 64)
    rounds = bucket_counts[network.name] * 2 * math.log2(64)
    assert (rounds * MESSAGE_BYTES > bytes_sent) == (network.name == "MNIST's CNN")

# %% [markdown]
# ## Exercise
#
# Write a function `needed_bandwidth(compute, size, buckets, hosts, wanted)`. It returns the
# smallest bandwidth in Gbit/s at which `predicted_step` reaches the efficiency `wanted`. Leave
# `inside` at zero. Which bandwidth does ResNet-34 need on 16 hosts for an efficiency of 95 %? Which
# bandwidth does it need with processors that compute 50 times as fast?
#
# Hint: the efficiency grows with the bandwidth, so you can bisect.

# %% [markdown]
# ## Solution


# %% tags=["hide-cell"]
def needed_bandwidth(compute, size, buckets, hosts, wanted):
    """The smallest bandwidth in Gbit/s at which a step reaches the wanted efficiency."""

    def reaches(gigabits):
        return compute / predicted_step(compute, size, buckets, hosts, gigabits) >= wanted

    too_slow, enough = 0.0, 1.0
    while not reaches(enough):
        too_slow, enough = enough, 2 * enough
    while enough - too_slow > 1e-6 * enough:
        middle = (too_slow + enough) / 2
        if reaches(middle):
            enough = middle
        else:
            too_slow = middle
    return enough


resnet = NETWORKS[1]
compute = step_seconds[resnet.name, 1, resnet.rank_batch]
job = (resnet_bytes, bucket_counts[resnet.name], 16)

one_core = needed_bandwidth(compute, *job, 0.95)
fifty_times = needed_bandwidth(compute / 50, *job, 0.95)
print(f"one core: {one_core:.2f} Gbit/s; 50 times as fast: {fifty_times:.0f} Gbit/s")

step = predicted_step(compute, *job, one_core)
assert math.isclose(compute / step, 0.95, rel_tol=1e-3)
# A processor that is f times as fast needs a network that is f times as fast.
assert math.isclose(fifty_times / one_core, 50, rel_tol=1e-3)

# %% [markdown]
# ## What next
#
# - [Accuracy](05_accuracy.ipynb): what a larger global batch does to the result.
# - [Where the time goes](../timeline.md): the timeline of your own job, in a browser.
# - [On a cluster](10_on_a_cluster.ipynb): the same with several hosts.
# - `mpirun -np 2 easyddl bench` times allreduce on your own machine.
