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
# # Strategies
#
# TensorFlow has a distribution strategy for each of several ways to train one model on many
# devices. This notebook plays each of them in a few lines of NumPy: who holds the weights, what
# travels in a step, and what that does to the weights. It also names the line of easyddl that
# does the same, or says why there is none. You should know `Send` and `Recv` from [What MPI
# is](02_what_mpi_is.ipynb) and the [four lines](../four_lines.md).
#
# To run it, install the extras `tensorflow`, `mpich` and `tutorials`, and open it in Jupyter: see
# [Notebooks](README.md).
#
# ## Two questions
#
# In data parallelism each *worker* computes the gradient of its own part of the batch. The
# strategies differ in two answers.
#
# - **Who holds the weights?** Either every worker has a copy, or a storage has the only one, from
#   which the workers read.
# - **When are the weights updated?** In *synchronous* training, an update waits for the gradients
#   of all workers. In *asynchronous* training, each worker's gradient is applied as soon as it
#   arrives. The worker computed it with weights that other workers may have updated since then.
#   The number of these updates is the *staleness* of the gradient.
#
# | strategy | class in `tf.distribute` | the weights are on | updates |
# |---|---|---|---|
# | one device | `OneDeviceStrategy` | the device | one process |
# | mirrored | `MirroredStrategy` | each device of a host | synchronous |
# | central storage | `experimental.CentralStorageStrategy` | one device of a host | synchronous |
# | multi-worker mirrored | `MultiWorkerMirroredStrategy` | each device of all hosts | synchronous |
# | parameter server | `ParameterServerStrategy` | servers, each a part | asynchronous by default |
#
# TensorFlow's [guide](https://www.tensorflow.org/guide/distributed_training) and [API
# documentation](https://www.tensorflow.org/api_docs/python/tf/distribute) describe these classes.

# %%
import itertools
import math
import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes, load_digits

import easyddl as ddl

# %% [markdown]
# The model is a linear regression, because its gradient is one line. The data are scikit-learn's
# 442 patients with diabetes, of whom the notebook takes 432: ten measurements of each, and how
# far the disease had progressed a year later. All columns are scaled to mean 0 and variance 1.

# %%
SAMPLES, TARGETS = load_diabetes(return_X_y=True, scaled=False)
SAMPLES, TARGETS = SAMPLES[:432], TARGETS[:432]
SAMPLES = (SAMPLES - SAMPLES.mean(axis=0)) / SAMPLES.std(axis=0)
TARGETS = (TARGETS - TARGETS.mean()) / TARGETS.std()
FEATURES = SAMPLES.shape[1]
BATCH = 48  # samples of all workers together
EPOCH = len(SAMPLES) // BATCH  # steps
STEPS = 3 * EPOCH
RATE = 0.02


def batch(step):
    """The numbers of the samples that all workers together take in a step."""
    begin = step % EPOCH * BATCH
    return np.arange(begin, begin + BATCH)


def part(step, worker, workers):
    """The numbers of the samples that one of several workers takes in a step."""
    return batch(step)[worker::workers]


def loss(weights):
    """The mean squared error over all samples."""
    return np.mean((SAMPLES @ weights - TARGETS) ** 2)


def gradient(weights, rows):
    """The gradient of the mean squared error over some samples."""
    x, y = SAMPLES[rows], TARGETS[rows]
    return 2 * x.T @ (x @ weights - y) / len(rows)


lowest_loss = loss(np.linalg.lstsq(SAMPLES, TARGETS)[0])
print(f"loss of zero weights {loss(np.zeros(FEATURES)):.4f}, lowest possible {lowest_loss:.4f}")

# %% [markdown]
# ## One device
#
# One process computes each batch alone. All synchronous strategies must give its weights, up to
# rounding. `OneDeviceStrategy` only chooses the device. In easyddl, it is a script that is
# started without `mpirun`: the four lines then exchange nothing and scale nothing. Only the order
# into which `fit` shuffles arrays differs.


# %%
def one_device():
    weights = np.zeros(FEATURES)
    for step in range(STEPS):
        weights = weights - RATE * gradient(weights, batch(step))
    return weights


expected = one_device()
print(f"loss after {STEPS} steps: {loss(expected):.4f}")
assert lowest_loss < loss(expected) < 0.6


def assert_equal_to_one_device(weights):
    """Differences of rounding are allowed: another order of summation."""
    np.testing.assert_allclose(weights, expected, rtol=1e-12, atol=1e-14)


# %% [markdown]
# ## Mirrored: every worker has a copy
#
# All workers begin with the same weights. In each step they average their gradients by an
# allreduce, and each worker updates its own copy in the same way. So the copies stay equal.
#
# The four ranks below run on one host. `EASYDDL_HOSTS` makes easyddl treat them as two ranks on
# each of two hosts, and exchange their gradients as it does between hosts.

# %%
ranks = ddl.Ranks(np=4, env={"EASYDDL_HOSTS": "a,a,b,b"})


def mirrored():
    weights = np.zeros(FEATURES)
    for step in range(STEPS):
        mine = gradient(weights, part(step, ddl.rank(), ddl.size()))
        weights = weights - RATE * ddl.allreduce(mine, op="mean")
    return weights, ddl.num_nodes()


for weights, hosts in ranks.run(mirrored):
    assert hosts == 2
    assert_equal_to_one_device(weights)
print("Four mirrored workers have the weights of one device.")

# %% [markdown]
# `MirroredStrategy` does this for the GPUs of one host, within one process.
# `MultiWorkerMirroredStrategy` does it for several hosts. It is started once on each of them,
# with the addresses of all hosts in the variable `TF_CONFIG`. In easyddl both are the same lines
# of the script, and only the start differs:
#
#     easyddl run -np 4 python train.py                # on this host
#     easyddl run -H h1:4,h2:4 python train.py         # on two hosts
#
# `DDLCallback` averages the gradients, and `DDLGlobalVariablesCallback` makes the copies equal
# before the first step. The next cell trains the same regression with Keras. It leaves out
# `scale_lr`, because the comparison needs the same rate. Keras computes with float32, so more
# digits differ.


# %%
def mirrored_by_easyddl():
    import keras

    x, y = ddl.split_data(SAMPLES, TARGETS)
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(RATE), loss="mse")
    model.fit(
        x,
        y,
        batch_size=BATCH // ddl.size(),
        epochs=STEPS // EPOCH,
        shuffle=False,
        verbose=0,
        callbacks=[ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()],
    )
    return model.get_weights()[0][:, 0]


copies = ranks.run(mirrored_by_easyddl)
for copy in copies:
    assert np.array_equal(copy, copies[0])  # the same bits on all ranks
    np.testing.assert_allclose(copy, expected, atol=1e-5)
print("easyddl has trained the same weights, with equal bits on all ranks.")

# %% [markdown]
# With Keras 3.15 and TensorFlow 2.21, `model.fit` runs under `MirroredStrategy`, and raises a
# `ValueError` under `MultiWorkerMirroredStrategy` with two workers: see Keras's
# [issue 20585](https://github.com/keras-team/keras/issues/20585).
#
# ## Central storage: the only copy is in one place
#
# A storage holds the weights. In each step it sends them to the workers, receives a gradient from
# each, and updates. `CentralStorageStrategy` keeps them in the CPU's memory, and lets the GPUs of
# one host compute. A parameter server that waits for all workers does the same over a network.
#
# Here rank 0 is the storage, and the other ranks are the workers. `Counted` adds up the bytes of
# all messages that its rank sends or receives.


# %%
class Counted:
    """A communicator that counts the bytes of its messages."""

    def __init__(self):
        ddl.init()  # starts MPI
        from mpi4py import MPI

        self._mpi, self._comm = MPI, MPI.COMM_WORLD
        self.rank = self._comm.rank
        self.bytes = 0

    def send(self, array, rank):
        self._comm.Send(array, rank)
        self.bytes += array.nbytes

    def receive(self, array, rank=None):
        """Receives an array, by default from any rank. Returns the rank that has sent it."""
        source, status = self._mpi.ANY_SOURCE if rank is None else rank, self._mpi.Status()
        # MPI waits without a pause, and would take the cores from ranks that compute.
        while not self._comm.Iprobe(source):
            time.sleep(0.0001)
        self._comm.Recv(array, source, status=status)
        self.bytes += status.Get_count(self._mpi.BYTE)
        return status.source


def store(comm, workers, steps):
    """The storage: sends weights, receives gradients, updates."""
    weights, arriving = np.zeros(FEATURES), np.empty(FEATURES)
    for _ in range(steps):
        for worker in range(1, workers + 1):
            comm.send(weights, worker)
        total = np.zeros(FEATURES)
        for worker in range(1, workers + 1):
            comm.receive(arriving, worker)
            total += arriving
        weights = weights - RATE * total / workers
    return weights


def compute(comm, workers, steps):
    """A worker: receives weights, sends the gradient of its part."""
    weights = np.empty(FEATURES)
    for step in range(steps):
        comm.receive(weights, 0)
        comm.send(gradient(weights, part(step, comm.rank - 1, workers)), 0)


def central_storage(workers, steps):
    """Returns the weights of the storage, and the bytes of this rank's messages."""
    comm, weights = Counted(), None
    if comm.rank == 0:
        weights = store(comm, workers, steps)
    elif comm.rank <= workers:
        compute(comm, workers, steps)
    return weights, comm.bytes


(weights, _), *_ = ranks.run(central_storage, args=(3, STEPS))
assert_equal_to_one_device(weights)
print("A central storage with three workers has the weights of one device.")

# %% [markdown]
# Three workers take parts of 16 samples, where four mirrored workers took 12. The weights are
# equal again, because only the batch of all workers together counts.
#
# ## What travels
#
# Let the weights have `N` bytes. With `k` workers, the storage sends `k N` bytes of weights and
# receives `k N` bytes of gradients in each step. Its connection carries `2 k N` bytes, and
# becomes the bottleneck. The messages above confirm it:

# %%
STORED = 8 * FEATURES  # the bytes of the weights, in float64
measured = {}
for workers in (1, 2, 3):
    traffic = [count for _, count in ranks.run(central_storage, args=(workers, STEPS))]
    assert traffic[0] == STEPS * 2 * workers * STORED
    assert traffic[1 : workers + 1] == [STEPS * 2 * STORED] * workers
    measured[workers] = traffic[0] / STEPS / STORED

# %% [markdown]
# An allreduce has no such place. In a ring, each of `k` workers sends `2 (k-1)/k N` bytes, less
# than `2 N` however many there are, and receives as many ([Allreduce,
# seen](03_allreduce_seen.ipynb) counts the messages). For a comparison with the storage, both
# directions count. `s` parameter servers divide the weights among themselves, and each carries an
# `s`-th of the bytes if the parts are equal. A worker itself carries `2 N` bytes, which is more
# than a server does if there are fewer workers than servers.

# %%
counts = np.arange(1, 17)
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.plot(counts, 2 * counts, label="central storage, or one parameter server")
axes.plot(counts, np.maximum(2, 2 * counts / 4), label="four parameter servers")
axes.plot(counts, 2 * 2 * (counts - 1) / counts, label="ring allreduce, each worker")
axes.plot(measured.keys(), measured.values(), "ko", label="counted above")
axes.set(xlabel="workers", ylabel="bytes per step, in multiples of N")
axes.set_title("Sent and received by the busiest process")
axes.legend()
plt.show()

# %% [markdown]
# easyddl has no central storage. Its ranks of one host add up their gradients in memory that all
# of them can read, and only sums of the host leave it. A central storage is of use when the
# weights do not fit into the memory of each device, such as large embeddings.
#
# ## Parameter server, asynchronous
#
# A worker sends its gradient, receives the weights as they are then, and continues. The server
# applies each gradient as soon as it arrives, and waits for nobody. It numbers the versions of
# the weights, and the worker returns the number with its gradient. The difference is the
# staleness. A pause stands for the time that the gradient of a larger model takes. It is longer
# for worker 3, as on a slower machine.

# %%
WORKERS, UPDATES, STOP = 3, 300, -1


def serve(comm):
    """The server. Returns the weights, and a pair of worker and staleness for each update."""
    message, weights, log = np.empty(FEATURES + 1), np.zeros(FEATURES), []
    for worker in range(1, WORKERS + 1):
        comm.send(np.append(weights, 0), worker)
    while len(log) < UPDATES:
        worker = comm.receive(message)
        log.append((worker, len(log) - int(message[-1])))
        weights = weights - RATE * message[:-1]
        comm.send(np.append(weights, len(log)), worker)
    for _ in range(WORKERS):  # the gradients that are still under way are not applied
        comm.send(np.append(weights, STOP), comm.receive(message))
    return weights, log


def work(comm):
    """A worker, until the server stops it."""
    message = np.empty(FEATURES + 1)
    for step in itertools.count():
        comm.receive(message, 0)
        weights, version = message[:-1], message[-1]
        if version == STOP:
            return
        mine = gradient(weights, part(step, comm.rank - 1, WORKERS))
        time.sleep(0.02 if comm.rank == 3 else 0.005)
        comm.send(np.append(mine, version), 0)


def parameter_server():
    comm = Counted()
    return serve(comm) if comm.rank == 0 else work(comm)


(weights, log), *_ = ranks.run(parameter_server)
print("worker  gradients  mean staleness  largest")
for worker in range(1, WORKERS + 1):
    own = [staleness for who, staleness in log if who == worker]
    print(f"{worker:6} {len(own):10} {np.mean(own):15.2f} {max(own):8}")
print(f"loss after {UPDATES} updates: {loss(weights):.4f}")

# %% [markdown]
# The order in which gradients arrive depends on the machine, on other programs and on chance. So
# does this table, and so do the weights: a second run gives other ones. Some facts hold in every
# run.
#
# - Each gradient is applied once, and its staleness is at least 0.
# - The first gradient to arrive has staleness 0.
# - A worker waits for the weights of its last update before it computes its next gradient. The
#   staleness `s` counts the updates of others in between. So `s + 1`, added up over the gradients
#   of a worker, is the number of updates when its last gradient was applied. For the worker whose
#   gradient came last, this is the number of all updates.
# - Therefore the mean staleness is at most the number of workers less 1.

# %%
sums = {
    worker: sum(staleness + 1 for who, staleness in log if who == worker)
    for worker in range(1, WORKERS + 1)
}
staleness = np.array([each for _, each in log])
assert len(log) == UPDATES
assert staleness.min() == staleness[0] == 0
assert sums[log[-1][0]] == UPDATES == max(sums.values())
assert staleness.mean() <= WORKERS - 1

figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
for worker in range(1, WORKERS + 1):
    places = [number for number, (who, _) in enumerate(log) if who == worker]
    axes.plot(places, staleness[places], ".", label=f"worker {worker}")
axes.set(xlabel="update", ylabel="staleness in updates")
figure.legend(loc="outside lower center", ncols=3)
plt.show()

# %% [markdown]
# The server does not wait for the slower worker. That is the advantage of asynchronous training:
# slow workers, or workers that come and go, do not delay the others. Dean et al. describe it in
# [Large Scale Distributed Deep
# Networks](https://papers.nips.cc/paper/4687-large-scale-distributed-deep-networks) (2012). The
# price is that the gradients are stale.
#
# ## What staleness does
#
# To compare runs, the staleness must not depend on the machine. If `k` workers of equal speed
# take turns, each gradient is `k-1` updates old. The next function simulates that in one process.
# Everything but the staleness is the same: the batches, their order, and the number of updates.
# Staleness 0 is synchronous training.
#
# A step of gradient descent is stable if the rate is below $2/\lambda$, where $\lambda$ is the
# largest curvature of the loss, the largest eigenvalue of its Hessian. So the rates are given as
# multiples of $1/\lambda$.

# %%
LARGEST_CURVATURE = np.linalg.eigvalsh(2 * SAMPLES.T @ SAMPLES / len(SAMPLES))[-1]
DELAYS = {0: "synchronous", 2: "staleness 2 (3 workers)", 7: "staleness 7 (8 workers)"}


def losses(multiple, staleness, updates=120):
    """The loss after each update, where each gradient is computed with older weights."""
    history = [np.zeros(FEATURES)]
    for step in range(updates):
        old = history[max(0, step - staleness)]
        change = multiple / LARGEST_CURVATURE * gradient(old, batch(step))
        history.append(history[-1] - change)
    return [loss(weights) for weights in history]


curves = {multiple: {delay: losses(multiple, delay) for delay in DELAYS} for multiple in (0.1, 0.8)}

figure, plots = plt.subplots(1, 2, figsize=(7, 4), layout="constrained", sharey=True)
for axes, (multiple, by_delay) in zip(plots, curves.items(), strict=True):
    for delay, curve in by_delay.items():
        axes.plot(curve, label=DELAYS[delay])
    axes.axhline(lowest_loss, color="black", linestyle="--", linewidth=1, label="lowest possible")
    axes.set(title=f"rate {multiple} / λ", xlabel="update", yscale="log", ylim=(0.4, 20))
plots[0].set_ylabel("mean squared error")
plots[0].legend()
plt.show()

low, high = curves.values()
for delay in DELAYS:
    assert low[delay][-1] < 1.05 * lowest_loss
assert high[0][-1] < 1.05 * lowest_loss
assert high[2][-1] > 100 * high[2][0] and high[7][-1] > high[2][-1]

# %% [markdown]
# At the low rate all three reach nearly the lowest loss. At the high rate synchronous training
# gets there sooner, and the stale gradients diverge: they point to where the weights were, and
# the step overshoots further every time.
#
# For a single weight with curvature $\lambda$ the limit is known. With staleness $s$ the update
# $w_{t+1} = w_t - \eta \lambda w_{t-s}$ is stable if
#
# $$\eta \lambda < 2 \sin \frac{\pi}{2 (2 s + 1)},$$
#
# which Levin and May derived in [A note on difference-delay
# equations](https://doi.org/10.1016/0040-5809(76)90043-5) (1976). For $s = 0$ it is the limit 2
# of gradient descent. The next cell looks for the limit by bisection, and compares.


# %%
def is_stable(multiple, staleness):
    """Whether one weight, which should become 0, does so."""
    weights = [1.0]
    for step in range(4000):
        weights.append(weights[-1] - multiple * weights[max(0, step - staleness)])
        if abs(weights[-1]) > 1e6:
            return False
    return abs(weights[-1]) < 1


def limit(staleness):
    """The largest stable rate, by bisection, in multiples of 1 / λ."""
    low, high = 0.0, 3.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if is_stable(middle, staleness) else (low, middle)
    return low


def formula(staleness):
    return 2 * math.sin(math.pi / (2 * (2 * staleness + 1)))


tried = range(8)
found = [limit(staleness) for staleness in tried]
np.testing.assert_allclose(found, [formula(staleness) for staleness in tried], rtol=0.01)

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.plot(tried, [formula(staleness) for staleness in tried], label="formula")
axes.plot(tried, found, "ko", label="found by bisection")
for multiple in curves:
    axes.axhline(multiple, color="tab:gray", linestyle=":", linewidth=1)
    axes.annotate(f"rate {multiple} / λ, above", (7, multiple), ha="right", va="bottom")
axes.set(xlabel="staleness in updates", ylabel="largest stable rate, in multiples of 1 / λ")
axes.legend()
plt.show()

# %% [markdown]
# The largest stable rate falls about as $1 / (2s + 1)$ with the staleness $s$. More workers make
# the gradients staler, so each of them must take smaller steps. Synchronous training has the
# opposite rule: more workers make a larger batch, and a larger batch allows a [larger
# rate](../four_lines.md#3-kerasoptimizerssgdddlscale_lr001). Networks are no linear regressions,
# but [Chen et al.](https://arxiv.org/abs/1604.00981) (2016) compared both for image
# classification: their synchronous training, which leaves out the slowest workers, was faster and
# reached a higher accuracy.
#
# ## Send less than a gradient
#
# On a slow network a step waits for its gradients. Many papers therefore *compress* them. Each
# worker sends a code with fewer bits, and all workers average what they decode. The code loses
# something. With *error feedback* the worker keeps what its code has lost, and adds it to its next
# gradient: nothing is lost for good, it only comes later.
#
# The next cells play five kinds on a network with one hidden layer, which learns scikit-learn's
# handwritten digits. Its two matrices contain the biases as their last rows.

# %%
IMAGES, LABELS = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(LABELS))
IMAGES, LABELS = IMAGES[order].astype("float32") / 16, LABELS[order]
TRAINED = 1408  # images; the others are held out
TOGETHER, EPOCHS, SEEDS, SPEED = 64, 10, 3, 0.5


def forward(matrices, images):
    """The hidden layer and the probabilities of the ten digits."""
    first, second = matrices
    hidden = np.maximum(0, images @ first[:-1] + first[-1])
    scores = hidden @ second[:-1] + second[-1]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def slopes(matrices, images, labels):
    """The gradient of the mean cross-entropy: one matrix for each of the two."""
    hidden, chances = forward(matrices, images)
    chances[np.arange(len(labels)), labels] -= 1
    chances /= len(labels)
    back = (chances @ matrices[1][:-1].T) * (hidden > 0)
    return [
        np.vstack([images.T @ back, back.sum(axis=0)]),
        np.vstack([hidden.T @ chances, chances.sum(axis=0)]),
    ]


# %% [markdown]
# Four kinds of codes send an array or two for each matrix:
#
# - **bfloat16** keeps the first 16 of the 32 bits of a number, rounded.
# - **8 bits** divides by the largest element and rounds to an integer from -127 to 127, as
#   [QSGD](https://arxiv.org/abs/1610.02132) does with random rounding.
# - **1 bit** sends the signs, and the mean magnitude of the matrix ([Seide et al.,
#   2014](https://www.microsoft.com/en-us/research/publication/1-bit-stochastic-gradient-descent-and-application-to-data-parallel-distributed-training-of-speech-dnns/)).
# - **largest 2 %** sends these elements and their places ([Lin et al.,
#   2017](https://arxiv.org/abs/1712.01887)).


# %%
def encode_bfloat16(matrix):
    bits = matrix.view(np.uint32)
    return [((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)]


def decode_bfloat16(shape, code):
    return (code.astype(np.uint32) << 16).view(np.float32)


def encode_8_bits(matrix):
    largest = max(np.abs(matrix).max(), np.float32(1e-30))
    return [np.rint(matrix / largest * 127).astype(np.int8), np.float32([largest])]


def decode_8_bits(shape, code, largest):
    return code.astype(np.float32) * (largest / 127)


def encode_1_bit(matrix):
    return [np.packbits(matrix > 0), np.float32([np.abs(matrix).mean()])]


def decode_1_bit(shape, code, mean):
    signs = np.unpackbits(code, count=math.prod(shape)).reshape(shape)
    return np.where(signs, mean, -mean)


def encode_largest(matrix):
    count = math.ceil(0.02 * matrix.size)
    places = np.argpartition(np.abs(matrix).ravel(), -count)[-count:]
    return [places.astype(np.int32), matrix.ravel()[places]]


def decode_largest(shape, places, values):
    matrix = np.zeros(shape, np.float32)
    matrix.ravel()[places] = values
    return matrix


CODES = {
    "float32": (lambda matrix: [matrix], lambda shape, code: code),
    "bfloat16": (encode_bfloat16, decode_bfloat16),
    "8 bits": (encode_8_bits, decode_8_bits),
    "1 bit": (encode_1_bit, decode_1_bit),
    "largest 2 %": (encode_largest, decode_largest),
}


def exchange(code, matrix):
    """Averages a matrix over all ranks.

    Returns the mean of what the ranks have sent, what this rank has sent, and its bytes.
    """
    encode, decode = CODES[code]
    sent = encode(matrix)
    arrived = zip(*(ddl.allgather(each[np.newaxis]) for each in sent), strict=True)
    decoded = [decode(matrix.shape, *arrays) for arrays in arrived]
    return np.mean(decoded, axis=0), decoded[ddl.rank()], sum(each.nbytes for each in sent)


# %% [markdown]
# The fifth kind, **rank 1**, is [PowerSGD](https://arxiv.org/abs/1905.13727): it approximates the
# mean matrix by the product of a column and a row. Both are found by one step of power iteration,
# which starts from the row of the previous step. Here an allreduce can add up what travels.


# %%
def exchange_rank_1(matrix, row):
    """Like `exchange`. Returns the row for the next step as well."""
    column = ddl.allreduce(matrix @ row, op="mean")
    column /= max(np.linalg.norm(column), np.float32(1e-30))
    row = ddl.allreduce(matrix.T @ column, op="mean")
    product = np.outer(column, row)
    return product, product, column.nbytes + row.nbytes, row


def train_compressed(code, feedback, seed):
    """Returns the held-out accuracy, the bytes that a rank has sent in a step, and the weights."""
    random = np.random.default_rng(seed)
    shapes = [(65, 32), (33, 10)]
    matrices = [random.normal(0, 0.15, shape).astype(np.float32) for shape in shapes]
    rows = [random.normal(size=shape[1]).astype(np.float32) for shape in shapes]
    errors = [np.zeros(shape, np.float32) for shape in shapes]
    for _ in range(EPOCHS):
        for batch in random.permutation(TRAINED).reshape(-1, TOGETHER):
            mine = batch[ddl.rank() :: ddl.size()]
            total = 0
            for number, each in enumerate(slopes(matrices, IMAGES[mine], LABELS[mine])):
                wanted = each + errors[number] if feedback else each
                if code == "rank 1":
                    mean, sent, count, rows[number] = exchange_rank_1(wanted, rows[number])
                else:
                    mean, sent, count = exchange(code, wanted)
                errors[number] = wanted - sent
                matrices[number] -= np.float32(SPEED) * mean
                total += count
    _, chances = forward(matrices, IMAGES[TRAINED:])
    return np.mean(chances.argmax(axis=1) == LABELS[TRAINED:]), total, matrices


def compare():
    """Trains with every code, without and with error feedback."""
    cases = [(code, feedback) for code in [*CODES, "rank 1"] for feedback in (False, True)]
    return {case: [train_compressed(*case, seed) for seed in range(SEEDS)] for case in cases}


compared, *others = ranks.run(compare)
NUMBERS = 65 * 32 + 33 * 10
accuracies = {}
print("code         bytes  of float32   accuracy without and with error feedback, %")
for code in [*CODES, "rank 1"]:
    runs = [compared[code, feedback] for feedback in (False, True)]
    accuracies[code] = [100 * np.array([accuracy for accuracy, _, _ in each]) for each in runs]
    total = runs[0][0][1]
    shown = [
        f"{each.mean():.1f} ± {each.std(ddof=1) / SEEDS**0.5:.1f}" for each in accuracies[code]
    ]
    print(f"{code:12} {total:5} {total / (4 * NUMBERS):10.1%} {shown[0]:>14} {shown[1]:>14}")

for case, runs in compared.items():
    for other in others:
        for mine, theirs in zip(runs, other[case], strict=True):
            assert all(map(np.array_equal, mine[2], theirs[2]))  # the copies stay equal

# %% [markdown]
# The copies stay equal on all ranks, because every rank decodes the same codes. bfloat16 and 8
# bits lose nothing that these runs could show. The coarser codes lose accuracy without error
# feedback, and none with it: [Karimireddy et al.](https://arxiv.org/abs/1901.09847) (2019) explain
# why.

# %%
means = {code: [each.mean() for each in by_feedback] for code, by_feedback in accuracies.items()}
for code in ("bfloat16", "8 bits"):
    assert abs(means[code][0] - means["float32"][0]) < 1.5
for code in ("1 bit", "largest 2 %", "rank 1"):
    assert means[code][0] < means["float32"][0] - 0.5
    assert means[code][1] > means["float32"][0] - 1

# %% [markdown]
# Fewer bytes do not yet make a step faster. A code takes time on each rank, and codes that cannot
# be added up, such as signs and places, go from every rank to every other: their bytes grow with
# the number of ranks, where those of an allreduce stay below `2 N`. Error feedback needs a copy of
# the gradients in memory, which belongs in a checkpoint. In 200 settings with a well-tuned
# allreduce, [Agarwal et al.](https://arxiv.org/abs/2103.00543) (2021) found six in which
# compression was faster.
#
# easyddl has the code that needs none of this: `ddl.DDLCallback(wire_dtype="bfloat16")` [halves
# what travels between hosts](../performance.md#sixteen-bits-between-hosts), and adds in float32.
#
# ## What easyddl does
#
# The bytes are those that the busiest process sends and receives in a step, for `k` workers and
# weights of `N` bytes. The allreduce is that of a ring.
#
# | strategy | what travels | bytes | staleness | in easyddl |
# |---|---|---|---|---|
# | one device | nothing | 0 | 0 | `python train.py` |
# | mirrored | gradients | `4 (k-1)/k N` | 0 | four lines, `easyddl run -np 4` |
# | central storage | gradients, weights | `2 k N` | 0 | none |
# | multi-worker mirrored | gradients | `4 (k-1)/k N` | 0 | four lines, `easyddl run -H h1:4,h2:4` |
# | `s` parameter servers | gradients, weights | `2 k N / s`, at least `2 N` | about `k-1` | none |
#
# easyddl trains synchronously only. The weights are then those of one process with the batch of
# all ranks, and they do not depend on the order in which ranks finish their work. The price is
# that a step takes as long as the slowest rank.
# [`ddl.ProgressCallback`](../four_lines.md#what-else-to-watch-for) shows how much that is. For
# parallel work without any waiting, train several models at once: see [A
# search](09_search.ipynb).
#
# ## Exercise
#
# [Zhang et al.](https://arxiv.org/abs/1511.05950) (2015) divide the rate of each gradient by its
# staleness. Divide by `s + 1` instead, so that staleness 0 keeps the rate.
#
# 1. Run the high rate of the plot again for staleness 2 and 7, with the divided rate. Does it
#    still diverge?
# 2. Show with `formula` that the divided rate is stable for every staleness from 0 to 100, if the
#    rate is $1/\lambda$ or less.
# 3. Which training has the lower loss after 10 updates, the synchronous one or that of staleness
#    7? Why?
#
# ## Solution

# %% tags=["hide-cell"]
divided = {delay: losses(0.8 / (delay + 1), delay) for delay in DELAYS}
for delay, curve in divided.items():
    print(f"staleness {delay}: loss {curve[-1]:.4f}")
    assert curve[-1] < 1.1 * lowest_loss
assert all(1 / (delay + 1) < formula(delay) for delay in range(101))

# %% [markdown]
# The divided rate does not diverge. For staleness 7 it is an eighth of the synchronous rate, so
# the first updates go a shorter way. Eight workers deliver eight gradients in the time in which a
# synchronous step needs one from each, and that makes up for it.

# %% tags=["hide-cell"]
print(f"after 10 updates: synchronous {divided[0][10]:.4f}, staleness 7 {divided[7][10]:.4f}")
assert divided[7][10] > divided[0][10]
ranks.close()

# %% [markdown]
# ## What next
#
# - [A search](09_search.ipynb): several models at the same time, each on cores of its own.
# - [On a cluster](10_on_a_cluster.ipynb): the mirrored strategy on many hosts.
# - [Accuracy](05_accuracy.ipynb): which rate a larger batch allows.
