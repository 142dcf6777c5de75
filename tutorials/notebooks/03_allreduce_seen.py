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
# # Allreduce, seen
#
# An *allreduce* takes an array from every rank, adds the arrays, and gives the sum to every rank.
# Data-parallel training does this with the gradients in every step. You will write seven allreduce
# algorithms in about ten lines each, see the messages that they send, count them, and predict and
# measure how long they take. You need to know what ranks and messages are
# ([What MPI is](02_what_mpi_is.ipynb)). What an allreduce costs a training is the subject of
# [Scaling](04_scaling.ipynb).
#
# To run it, install the extras `tensorflow`, `mpich` and `tutorials`, and open it in Jupyter: see
# [Notebooks](README.md).

# %%
import functools
import itertools
import json
import os
import pathlib
import statistics
import time
from collections import Counter

import easyddl as ddl
import matplotlib.pyplot as plt
import numpy as np

RANKS, PER_HOST = 8, 4
ranks = ddl.Ranks(np=RANKS)

# %% [markdown]
# All eight ranks run on this computer. For the counts below, ranks 0 to 3 stand for one host and
# ranks 4 to 7 for another.
#
# Four letters are used throughout: $p$ ranks, of which $m$ share a host, $h = p / m$ hosts, and
# arrays of $N$ bytes.

# %% [markdown]
# ## Send and receive
#
# The algorithms need two operations: `send(to, data)` and `recv(frm)`. Both are small functions
# over [mpi4py](https://mpi4py.readthedocs.io), the Python interface of MPI. Ranks can use mpi4py
# beside easyddl after `ddl.init()`, which starts MPI. `recv` looks for a message with `Improbe`,
# which tells how long it is, and gives the core away until there is one: eight ranks may share two
# cores.


# %% tags=["algorithms"]
class Group:
    """The ranks of a communicator, and messages between them."""

    def __init__(self, comm, per_host):
        self.comm, self.rank, self.size, self.per_host = comm, comm.rank, comm.size, per_host
        self.requests = []

    def send(self, to, data):
        """Starts to send an array of float32, and does not wait for the receiver."""
        self.requests.append(self.comm.Isend(data, to))

    def recv(self, frm):
        """Waits for the next array from a rank, and returns it."""
        from mpi4py import MPI

        status = MPI.Status()
        while (message := self.comm.Improbe(frm, status=status)) is None:
            os.sched_yield()  # lets another rank run: the sender may need this core
        data = np.empty(status.Get_count(MPI.FLOAT), np.float32)
        message.Recv(data)
        return data

    def finish(self):
        """Waits until MPI no longer reads the arrays that this rank has sent."""
        from mpi4py import MPI

        MPI.Request.Waitall(self.requests)
        self.requests.clear()


# %% [markdown]
# **Why `send` does not wait.** In three of the algorithms below all ranks send before they receive.
# If each of them waited until its receiver has begun to receive, no rank would ever reach its own
# receive: a *deadlock*. The next cell shows this without hanging. `Issend` starts a send that is
# complete only when its receiver has begun to receive. At the first barrier every rank has started
# such a send to its right neighbor, and no rank receives. So no send is complete. A *barrier* is
# a collective that returns when all ranks have called it.


# %%
def send_before_receive():
    """Whether the own send is complete while no rank receives."""
    ddl.init()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    data, received = np.ones(4, np.float32), np.empty(4, np.float32)
    request = comm.Issend(data, (comm.rank + 1) % comm.size)
    comm.Barrier()
    is_complete = request.Test()
    comm.Barrier()  # no rank receives before all have looked
    comm.Recv(received, (comm.rank - 1) % comm.size)
    request.Wait()
    return is_complete


assert ranks.run(send_before_receive) == [False] * RANKS

# %% [markdown]
# MPI's plain `Send` may or may not wait for the receiver. Libraries usually copy a small array and
# return, and wait with a large one. A program that relies on the copy works in a small test and
# hangs with larger arrays. The [MPI standard](https://www.mpi-forum.org/docs/) calls such a program
# *unsafe* (section 3.5). There are two safe ways:
#
# - `Isend` starts the send and returns at once. The program receives, and waits for the send later.
#   `Group` does this, and `finish` waits. Until then the array must not change, because MPI may
#   still read it. Therefore the algorithms below never write into an array: `total + received` is a
#   new one.
# - `Sendrecv` sends and receives in one call. It suits algorithms in which each rank does both in
#   every step.

# %% [markdown]
# ## Seven algorithms
#
# **All-to-all.** Every rank sends its array to every other rank, and adds what it receives. Rank
# $r$ sends to $r + 1$ first, then to $r + 2$, and so on, so that no rank gets two messages at a
# time. Each rank adds the arrays in the order of the ranks: if every rank had an order of its own,
# the sums would differ in their last bits.


# %% tags=["algorithms"]
def all_to_all(group, data):
    arrays = {group.rank: data}
    for distance in range(1, group.size):
        group.send((group.rank + distance) % group.size, data)
    for distance in range(1, group.size):
        frm = (group.rank - distance) % group.size
        arrays[frm] = group.recv(frm)
    return sum(arrays[rank] for rank in range(group.size))


# %% [markdown]
# **Master.** Every rank sends its array to rank 0, which adds them and sends the sum back.
# Everything passes through rank 0, while the other ranks wait.


# %% tags=["algorithms"]
def master(group, data):
    if group.rank != 0:
        group.send(0, data)
        return group.recv(0)
    total = data
    for other in range(1, group.size):
        total = total + group.recv(other)
    for other in range(1, group.size):
        group.send(other, total)
    return total


# %% [markdown]
# **Tree.** In the first step every odd rank sends its array to the rank before it, which adds it.
# In the next step every second one of the remaining ranks does the same, and so on, until rank 0
# has the sum. The result returns on the same paths, in the opposite order. This is a *binomial
# tree*: a reduce, followed by a broadcast.


# %% tags=["algorithms"]
def tree(group, data):
    total, distance = data, 1
    while distance < group.size and group.rank % (2 * distance) == 0:
        if group.rank + distance < group.size:
            total = total + group.recv(group.rank + distance)
        distance *= 2
    if group.rank > 0:
        group.send(group.rank - distance, total)
        total = group.recv(group.rank - distance)
    while distance > 1:
        distance //= 2
        if group.rank + distance < group.size:
            group.send(group.rank + distance, total)
    return total


# %% [markdown]
# **Round-robin.** The sum goes from rank to rank, and each rank adds its own array. The last rank
# has the result. Then the result goes round in the same way. Only one message is on its way at a
# time.


# %% tags=["algorithms"]
def round_robin(group, data):
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    total = data if group.rank == 0 else group.recv(left) + data
    group.send(right, total)  # the last rank sends the result to rank 0
    if group.rank < group.size - 1:
        total = group.recv(left)
    if group.rank < group.size - 2:
        group.send(right, total)
    return total


# %% [markdown]
# **Butterfly.** In each step the ranks form pairs, and both ranks of a pair get the sum of the two.
# The distance between partners doubles: after steps with the distances 1, 2 and 4, every rank has
# the sum of eight. Its other name is *recursive doubling*. In this form $p$ must be a power of two.


# %% tags=["algorithms"]
def butterfly(group, data):
    total, distance = data, 1
    while distance < group.size:
        partner = group.rank ^ distance
        group.send(partner, total)
        total = total + group.recv(partner)
        distance *= 2
    return total


# %% [markdown]
# **Ring.** The array is cut into $p$ parts. In the first half, the *reduce-scatter*, each part goes
# around the ring, and every rank adds its own numbers to it. Then each rank has the sum of one
# part. In the second half, the *all-gather*, these sums go around. In every step every rank sends
# one part and receives one, of $N / p$ bytes each.


# %% tags=["algorithms"]
def ring(group, data):
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    parts = np.array_split(data, group.size)
    for step in range(group.size - 1):  # reduce-scatter
        mine = (group.rank - step - 1) % group.size
        group.send(right, parts[(mine + 1) % group.size])
        parts[mine] = parts[mine] + group.recv(left)
    for step in range(group.size - 1):  # all-gather
        mine = (group.rank - step) % group.size
        group.send(right, parts[(mine + 1) % group.size])
        parts[mine] = group.recv(left)
    return np.concatenate(parts)


# %% [markdown]
# **Hierarchical.** The first rank of each host is its *leader*. It adds the arrays of its host. The
# leaders sum theirs by the ring, and each sends the result to the ranks of its host. `Subgroup`
# gives the leaders new numbers from 0, so that `ring` works between them as it is.


# %% tags=["algorithms"]
class Subgroup:
    """Some ranks of a group, numbered anew from 0."""

    def __init__(self, group, members):
        self.rank, self.size = members.index(group.rank), len(members)
        self.send = lambda to, data: group.send(members[to], data)
        self.recv = lambda frm: group.recv(members[frm])


def hierarchical(group, data):
    leader = group.rank // group.per_host * group.per_host
    if group.rank != leader:
        group.send(leader, data)
        return group.recv(leader)
    total = data
    for other in range(leader + 1, leader + group.per_host):
        total = total + group.recv(other)
    total = ring(Subgroup(group, range(0, group.size, group.per_host)), total)
    for other in range(leader + 1, leader + group.per_host):
        group.send(other, total)
    return total


ALGORITHMS = [all_to_all, master, tree, round_robin, butterfly, ring, hierarchical]

# %% [markdown]
# ## Is the sum right?
#
# Every rank has different numbers. Sums of small whole numbers are exact in float32, so all
# algorithms must return exactly what NumPy computes. 1001 elements are no multiple of eight, so the
# ring has parts of different lengths here.


# %%
def whole_numbers(rank, count):
    return np.random.default_rng(rank).integers(-100, 100, count).astype(np.float32)


def fractions(rank, count):
    return np.random.default_rng(rank).standard_normal(count).astype(np.float32)


def results_of_all(make_input, count):
    """The result of each algorithm on this rank."""
    ddl.init()
    from mpi4py import MPI

    group = Group(MPI.COMM_WORLD, PER_HOST)
    results = {}
    for algorithm in ALGORITHMS:
        results[algorithm.__name__] = algorithm(group, make_input(group.rank, count))
        group.finish()
    return results


expected = np.sum([whole_numbers(rank, 1001) for rank in range(RANKS)], axis=0)
for results in ranks.run(results_of_all, args=(whole_numbers, 1001)):
    for name, result in results.items():
        assert np.array_equal(result, expected), name
print(f"{len(ALGORITHMS)} algorithms return NumPy's sum on {RANKS} ranks.")

# %% [markdown]
# With fractions, each addition rounds its result, so the sum depends on the order of the additions.
# Two algorithms may therefore differ in the last bits. But the ranks must not differ: models that
# start equal stay equal only if every rank gets the same bits. All seven algorithms ensure this.
# Each element is either added up on one rank and then copied, or added in the same order on all
# ranks. (In the butterfly one partner computes $a + b$ and the other $b + a$, which is the same
# number.)

# %%
by_rank = ranks.run(results_of_all, args=(fractions, 1001))
for algorithm in ALGORITHMS:
    assert len({results[algorithm.__name__].tobytes() for results in by_rank}) == 1
different = {result.tobytes() for result in by_rank[0].values()}
assert len(different) > 1
spread = np.ptp(list(by_rank[0].values()), axis=0).max()
assert spread < 1e-4
print(f"All ranks agree. The algorithms gave {len(different)} different results, at most")
print(f"{spread:.1e} apart.")

# %% [markdown]
# ## Record the messages
#
# `RecordedGroup` is a `Group` that notes each message that this rank receives: the step, the
# sender, the receiver and the bytes. The algorithms run on it unchanged.
#
# The *step* of a message is the first step that comes after all messages that its sender has sent
# or received before, and after all messages that its receiver has received before. So a rank sends
# at most one message in a step, and receives at most one. This is a
# [logical clock](https://doi.org/10.1145/359545.359563) (Lamport, 1978): it depends on the
# algorithm, and not on how long anything takes. The sender stamps each message with the first step
# that is possible for the sender, and the receiver may have to take a later one. The stamp travels
# in front of the data, as a message of its own that is not counted.


# %%
class RecordedGroup(Group):
    """A group that notes (step, from, to, bytes) of each message that this rank receives."""

    def __init__(self, comm, per_host):
        super().__init__(comm, per_host)
        self.last_sent = self.last_received = 0  # steps
        self.messages = []

    def send(self, to, data):
        self.last_sent = 1 + max(self.last_sent, self.last_received)
        super().send(to, np.array([self.last_sent], np.float32))
        super().send(to, data)

    def recv(self, frm):
        stamp = int(super().recv(frm)[0])
        data = super().recv(frm)
        self.last_received = max(stamp, 1 + self.last_received)
        self.messages.append((self.last_received, frm, self.rank, data.nbytes))
        return data


def record(algorithm, size, per_host, count):
    """Runs an algorithm on the first `size` ranks. Returns the result and this rank's messages."""
    ddl.init()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank < size)
    group = RecordedGroup(comm, per_host)
    result = None
    if MPI.COMM_WORLD.rank < size:
        result = algorithm(group, whole_numbers(group.rank, count))
    group.finish()
    comm.Free()
    return result, group.messages


COUNT = 1024  # elements
N = 4 * COUNT  # bytes


def messages_of(algorithm, size=RANKS, per_host=PER_HOST):
    """All messages of an algorithm, in the order of their steps. Checks the sum, too."""
    answers = ranks.run(record, args=(algorithm, size, per_host, COUNT))
    expected = np.sum([whole_numbers(rank, COUNT) for rank in range(size)], axis=0)
    for result, _ in answers[:size]:
        assert np.array_equal(result, expected)
    return sorted(message for _, messages in answers for message in messages)


recorded = {algorithm.__name__: messages_of(algorithm) for algorithm in ALGORITHMS}
print("(step, from, to, bytes)")
for message in recorded["butterfly"][:4]:
    print(message)

for messages in recorded.values():
    assert len({(step, frm) for step, frm, _, _ in messages}) == len(messages)
    assert len({(step, to) for step, _, to, _ in messages}) == len(messages)

# %% [markdown]
# ## See the messages
#
# Each horizontal line below is a rank, and time runs to the right, in steps. An arrow is a message.
# The larger the message, the thicker the arrow. Messages from one host to the other are orange.

# %%
COLORS = {False: "tab:blue", True: "tab:orange"}  # whether a message leaves its host


def leaves_host(frm, to, per_host):
    return frm // per_host != to // per_host


def draw(axes, title, messages):
    """Draws ranks as lines and messages as arrows."""
    steps = messages[-1][0]
    for rank in range(RANKS):
        axes.plot(range(steps + 1), [rank] * (steps + 1), ".-", color="0.8", linewidth=0.8)
    for step, frm, to, size in messages:
        style = {
            "arrowstyle": "-|>,head_width=0.15,head_length=0.3",
            "color": COLORS[leaves_host(frm, to, PER_HOST)],
            "linewidth": 0.5 + size / N,
            "shrinkA": 0,
            "shrinkB": 0,
        }
        axes.annotate("", xy=(step, to), xytext=(step - 1, frm), arrowprops=style)
    axes.axhline(PER_HOST - 0.5, color="0.5", linestyle=":", linewidth=0.8)
    axes.set(title=title, xlabel="step", ylabel="rank", yticks=range(RANKS), ylim=(7.5, -0.5))
    axes.set_xticks(range(0, steps + 1, 1 if steps < 10 else 2))


figure, panels = plt.subplots(4, 2, figsize=(7, 9), layout="constrained")
for axes, (name, messages) in zip(panels.flat, recorded.items(), strict=False):
    draw(axes, name, messages)
legend = [plt.Line2D([], [], color=COLORS[leaves]) for leaves in (False, True)]
panels.flat[-1].axis("off")
panels.flat[-1].legend(legend, ["within a host", "between hosts"], loc="center")
plt.show()

# %% [markdown]
# All-to-all keeps every rank busy with whole arrays. Master and round-robin both need 14 steps,
# with one message in each. The tree needs six steps, and the butterfly three. The ring needs 14
# again, but its messages are small, and every rank sends and receives in every step. Orange shows
# what the network must carry: much in all-to-all and in the last step of the butterfly, little in
# the tree and in the hierarchical algorithm.

# %% [markdown]
# ## Count the messages
#
# Five numbers describe an algorithm: its steps, its messages, the bytes of all messages, the most
# that one rank sends, and the most that leaves one host. Bytes are given in multiples of $N$.


# %%
def counts(messages, per_host):
    """Steps, messages, all bytes, the most that one rank sends, the most that leaves one host."""
    by_rank, by_host = Counter(), Counter()
    for _, frm, to, size in messages:
        by_rank[frm] += size
        if leaves_host(frm, to, per_host):
            by_host[frm // per_host] += size
    sent = [by_rank.total(), max(by_rank.values()), max(by_host.values())]
    return [messages[-1][0], len(messages), *(each / N for each in sent)]


def show(head, rows):
    """Prints a table: names in the first column, numbers in the others."""
    for name, *cells in [head, *rows]:
        texts = [cell if isinstance(cell, str) else f"{cell:g}" for cell in cells]
        print(f"{name:13}", *(f"{text:>13}" for text in texts))


head = ["", "steps", "messages", "all bytes", "of one rank", "of one host"]
show(head, [[name, *counts(messages, PER_HOST)] for name, messages in recorded.items()])

# %% [markdown]
# The next cell holds the general formulas, and compares them with what 8 and 4 ranks send on two
# and on four hosts:
#
# | | steps | messages | of one rank | of one host |
# |---|---|---|---|---|
# | all-to-all | $p-1$ | $p(p-1)$ | $(p-1)N$ | $m(p-m)N$ |
# | master | $2(p-1)$ | $2(p-1)$ | $(p-1)N$ | $(p-m)N$ |
# | tree | $2\log_2 p$ | $2(p-1)$ | $N\log_2 p$ | $N\log_2 h$ |
# | round-robin | $2(p-1)$ | $2(p-1)$ | $2N$ | $2N$ |
# | butterfly | $\log_2 p$ | $p\log_2 p$ | $N\log_2 p$ | $mN\log_2 h$ |
# | ring | $2(p-1)$ | $2p(p-1)$ | $2\frac{p-1}{p}N$ | $2\frac{p-1}{p}N$ |
# | hierarchical | $2(m+h-2)$ | $2h(m+h-2)$ | $(m-1)N+2\frac{h-1}{h}N$ | $2\frac{h-1}{h}N$ |


# %%
def formulas(p, m):
    """What `counts` must return for p ranks, m of them on each host."""
    h, log_p, log_h = p // m, np.log2(p), np.log2(p // m)
    around = 2 * (h - 1) / h
    return {
        "all_to_all": [p - 1, p * (p - 1), p * (p - 1), p - 1, m * (p - m)],
        "master": [2 * (p - 1), 2 * (p - 1), 2 * (p - 1), p - 1, p - m],
        "tree": [2 * log_p, 2 * (p - 1), 2 * (p - 1), log_p, log_h],
        "round_robin": [2 * (p - 1), 2 * (p - 1), 2 * (p - 1), 2, 2],
        "butterfly": [log_p, p * log_p, p * log_p, log_p, m * log_h],
        "ring": [2 * (p - 1), 2 * p * (p - 1), 2 * (p - 1), 2 * (p - 1) / p, 2 * (p - 1) / p],
        "hierarchical": [
            2 * (m + h - 2),
            2 * h * (m + h - 2),
            2 * (p - 1),
            m - 1 + around,
            around,
        ],
    }


for size, per_host in [(8, 4), (8, 2), (4, 2)]:
    for algorithm in ALGORITHMS:
        counted = counts(messages_of(algorithm, size, per_host), per_host)
        assert counted == formulas(size, per_host)[algorithm.__name__], (algorithm, size, per_host)

# %% [markdown]
# Five of the seven send the same bytes altogether, $2(p-1)N$. They differ in who sends them and
# when. The ring shares them equally: each rank sends $2(p-1)/p$ of an array, less than twice the
# array however many ranks there are.
# [Patarasuk and Yuan (2009)](https://doi.org/10.1016/j.jpdc.2008.09.002) derive a lower bound for
# the data that must be sent, and show that a ring reaches it.

# %% [markdown]
# ## Predict the time
#
# The usual model of a network has two numbers. A message of $n$ bytes takes $\alpha + \beta n$:
# $\alpha$ is the *latency*, in seconds per message, and $\beta$ is the time of a byte, in seconds.
# [Thakur, Rabenseifner and Gropp (2005)](https://doi.org/10.1177/1094342005051521) choose MPICH's
# algorithms by this model. All messages of a step travel at the same time, so the step takes as
# long as its largest message. The whole algorithm takes $A \alpha + B N \beta$. $A$ is the number
# of steps. $B$ is the sum, over all steps, of the largest message in multiples of $N$.
#
# When ranks of a host share a network connection, their messages to other hosts pass through it one
# after the other. The function below then adds up what leaves or reaches a host in a step, and
# takes the largest of these sums. Messages within a host count as free, so $A$ is the number of
# steps in which a message leaves a host.


# %%
def coefficients(messages, per_host=1):
    """A and B of the model. By default every rank has a connection of its own."""
    steps = {}
    for step, frm, to, size in messages:
        if leaves_host(frm, to, per_host):
            load = steps.setdefault(step, Counter())
            load["from", frm // per_host] += size
            load["to", to // per_host] += size
    return len(steps), sum(max(load.values()) for load in steps.values()) / N


own = {name: coefficients(messages) for name, messages in recorded.items()}
shared = {name: coefficients(messages, PER_HOST) for name, messages in recorded.items()}
head = ["", "A own", "B own", "A shared", "B shared"]
show(head, [[name, *own[name], *shared[name]] for name in recorded])

assert own["butterfly"] == (3, 3) and own["ring"] == (14, 14 / 8)
assert shared["butterfly"] == (1, 4) and shared["hierarchical"] == (2, 1)

# %% [markdown]
# Take a network with 1 Gbit/s, so that a byte takes 8 ns, and a latency of 50 µs. The table shows
# the predicted milliseconds for a small array and for a large one, when each rank has a connection
# of its own and when the ranks of a host share one.

# %%
ALPHA, BETA = 50e-6, 8e-9  # seconds per message, seconds per byte
SMALL, LARGE = 1 << 10, 64 << 20  # bytes


def predict(coefficients, size, alpha=ALPHA, beta=BETA):
    """Seconds for an array of `size` bytes."""
    a, b = coefficients
    return a * alpha + b * beta * size


head = ["ms", "own 1 KiB", "own 64 MiB", "shared 1 KiB", "shared 64 MiB"]
rows = []
for name in recorded:
    each = [predict(of[name], size) for of in (own, shared) for size in (SMALL, LARGE)]
    rows.append([name, *(f"{1000 * seconds:.2f}" for seconds in each)])
show(head, rows)

# %% [markdown]
# For a small array the latency decides: the fewest steps win. For a large array the bytes decide.
# The lines of two algorithms cross where $A_1\alpha + B_1 N\beta = A_2\alpha + B_2 N\beta$, that
# is, at $N = \frac{A_2 - A_1}{B_1 - B_2} \cdot \frac{\alpha}{\beta}$. The ratio $\alpha / \beta$ is
# the number of bytes that the network could send during the latency of one message. In the plots
# below, a black dot marks where the fastest algorithm changes.


# %%
def crossing(first, second):
    """The bytes at which two algorithms take the same time."""
    (a1, b1), (a2, b2) = first, second
    return (a2 - a1) / (b1 - b2) * ALPHA / BETA


def fastest(of, size):
    return min(of, key=lambda name: predict(of[name], size))


SIZES = np.logspace(8, 28, 200, base=2)
figure, panels = plt.subplots(1, 2, figsize=(7, 4), sharey=True, layout="constrained")
for axes, of, title in zip(
    panels, (own, shared), ("own connection", f"{PER_HOST} ranks share one"), strict=True
):
    for name in recorded:
        axes.loglog(SIZES / 1024, [predict(of[name], size) for size in SIZES], label=name)
    winners = list(dict.fromkeys(fastest(of, size) for size in SIZES))
    for small, large in itertools.pairwise(winners):
        size = crossing(of[small], of[large])
        seconds = predict(of[small], size)
        assert np.isclose(seconds, predict(of[large], size))
        axes.plot(size / 1024, seconds, "ko")
        print(f"{title}: {small} below {size / 1024:.1f} KiB, {large} above")
    axes.set(title=title, xlabel="size of the array in KiB")
panels[0].set_ylabel("predicted seconds")
panels[1].legend(fontsize="small")
plt.show()

assert [fastest(own, size) for size in (SMALL, LARGE)] == ["butterfly", "ring"]
assert [fastest(shared, size) for size in (SMALL, LARGE)] == ["butterfly", "hierarchical"]

# %% [markdown]
# With a connection for each rank, the butterfly is the fastest for small arrays and the ring for
# large ones. (Master and round-robin need the same time here, so they share a line.) Rabenseifner's
# algorithm, which Thakur et al. describe, has both advantages: it sends parts like the ring, to
# partners like the butterfly, in $2\log_2 p$ steps.
#
# With shared connections the hierarchical algorithm is faster than the ring at every size,
# because less leaves a host, in fewer steps. The model hides its weak point: within a host one
# leader does all the work.
# [BlueConnect (Cho et al., 2019)](https://proceedings.mlsys.org/paper_files/paper/2019/hash/0c8abcf158ed12d0dd94480681186fda-Abstract.html)
# removes it: the ranks of a host first do a reduce-scatter among themselves, and then each of them
# sums its own part with its counterparts on the other hosts.

# %% [markdown]
# ## Measure on this computer
#
# `seconds_of_all` times the seven algorithms, MPI's own allreduce and easyddl's. They take turns,
# and a call lasts until the last rank is done.


# %% tags=["algorithms"]
def time_call(comm, call):
    """Seconds from when all ranks are ready until the last one has returned."""
    from mpi4py import MPI

    comm.Barrier()
    begin = time.perf_counter()
    call()
    return comm.allreduce(time.perf_counter() - begin, MPI.MAX)


def run_and_finish(algorithm, group, data):
    algorithm(group, data)
    group.finish()


def seconds_of_all(size, rounds, per_host):
    """The median time of each algorithm for `size` bytes. The first round is a warm-up."""
    ddl.init()
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    group = Group(comm, per_host)
    data, total = np.ones(size // 4, np.float32), np.empty(size // 4, np.float32)
    calls = {
        each.__name__: functools.partial(run_and_finish, each, group, data) for each in ALGORITHMS
    }
    calls["MPI.Allreduce"] = functools.partial(comm.Allreduce, data, total)
    calls["ddl.allreduce"] = functools.partial(ddl.allreduce, data, "sum")
    timed = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            timed[name].append(time_call(comm, call))
    return {name: statistics.median(seconds[1:]) for name, seconds in timed.items()}


# %%
LIVE_SIZES = {"1 KiB": 1 << 10, "64 KiB": 1 << 16, "1 MiB": 1 << 20}
live = [ranks.run(seconds_of_all, args=(size, 5, PER_HOST))[0] for size in LIVE_SIZES.values()]
rows = [[name, *(f"{1000 * seconds[name]:.2f}" for seconds in live)] for name in live[0]]
show(["ms", *LIVE_SIZES], rows)

# %% [markdown]
# These times say nothing about a network. The ranks share the memory of this computer, so MPI
# copies messages from one process to another. If there are fewer cores than ranks, a message also
# waits until its receiver gets a core, which can take longer than the copy. Python adds its own
# time to each message, while MPI's allreduce and easyddl's are compiled. easyddl sends no
# messages within a host: the ranks use memory that they share, and wait for each other. With
# fewer cores than ranks, such waits take longer than a small array does. [How
# fast](../performance.md#one-host) compares them with a core for each rank.

# %% [markdown]
# ## Measured between hosts
#
# The next figures come from the same cells, on two hosts that only a slow network connects. The
# benchmark `tutorials/benchmarks/allreduce_algorithms.py` makes them out of network namespaces of
# one Linux machine, and limits what each of them can send in a second. It needs root, so its
# results are in a file beside this notebook, with the command and the conditions.

# %%
measured = json.loads(pathlib.Path("03_allreduce_seen.json").read_text())
for name, value in measured.items():
    if name != "results":
        print(f"{name}: {value}")
assert (measured["hosts"], measured["ranks_per_host"]) == (RANKS // PER_HOST, PER_HOST)

# %% [markdown]
# The script has measured $\alpha$ and $\beta$, in seconds, with messages that go back and forth
# between the two hosts. The table compares, in milliseconds, the measured times with those that the
# model predicts from these two numbers, for the smallest array and for the largest.


# %%
def predicted_there(name, size):
    """Seconds that the model predicts for the measured network, or `None`."""
    if name not in shared:
        return None
    return predict(shared[name], size, measured["alpha"], measured["beta"])


def in_ms(seconds):
    return "-" if seconds is None else f"{1000 * seconds:.2f}"


ends = [measured["results"][0], measured["results"][-1]]
head = ["ms"]
for each in ends:
    head += [f"{each['bytes'] >> 10} KiB", "predicted"]
rows = []
for name in ends[0]["seconds"]:
    pairs = [(each["seconds"][name], predicted_there(name, each["bytes"])) for each in ends]
    rows.append([name, *(in_ms(seconds) for pair in pairs for seconds in pair)])
show(head, rows)

figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
sizes = [each["bytes"] for each in measured["results"]]
for number, name in enumerate(ends[0]["seconds"]):
    seconds = [each["seconds"][name] for each in measured["results"]]
    style = "s-" if name not in shared else "o-"
    axes.loglog([size / 1024 for size in sizes], seconds, style, color=f"C{number}", label=name)
axes.set(xlabel="size of the array in KiB", ylabel="measured seconds (median)")
axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# The model ignores what happens within a host: copies, additions, and ranks that wait for a core.
# Where a measured time is much longer than the predicted one, these prevail. This concerns small
# arrays most: their measured times are 2 to 9 times the predicted ones. For 8 MiB they are 1.1 to
# 1.6 times as long, and for the hierarchical algorithm more than twice: its leaders copy and add
# whole arrays one after another, which costs nothing in the model.

# %% [markdown]
# ## Which of these easyddl uses
#
# - **Within a host** it uses none of them. The ranks use memory that they share: each of them
#   reduces some blocks of the array, and all get the results. This is a reduce-scatter and an
#   all-gather without messages. If the array has only a few KiB, every rank adds up all arrays
#   itself.
# - **On several hosts** it is hierarchical, in the way of BlueConnect: each rank of a host sums its
#   own part across the hosts. The data is cut into chunks, so that the network and the memory work
#   at the same time.
# - **Between hosts** there are four algorithms. `whole` is all-to-all. `direct` is a reduce-scatter
#   and an all-gather, in each of which everyone sends a part to everyone. `halving` is
#   Rabenseifner's algorithm. `ring` is the ring. The messages of `whole`, and those of each half of
#   `direct`, are on their way at the same time. Therefore easyddl counts the latency once for all
#   of them, and adds a small cost for each message.
# - **Master, tree and round-robin** are not used for sums. In the model, with a connection for each
#   rank, the butterfly is faster than each of them at every size.
#
# easyddl takes the algorithm with the lowest cost. It uses a fixed ratio of $\alpha$ to $\beta$ and
# not a measured one, so that the choice, and with it the bits of a sum, are the same in every run.
# The setting `EASYDDL_ALGORITHM` names one algorithm for all sizes.
#
# [How it is built](../how_it_is_built.md#how-an-allreduce-works) has the details. To compare
# easyddl's allreduce with MPI's and with a ring on your own hosts, start `easyddl bench` with
# `mpirun`.

# %%
for name in ("master", "tree", "round_robin"):
    assert own[name][0] > own["butterfly"][0] and own[name][1] > own["butterfly"][1]

# %% [markdown]
# ## Exercise
#
# The butterfly needs a power of two: with six ranks, rank 2 would look for partner 6. Write
# `butterfly_of_any_size(group, data)`. Let $q$ be the largest power of two that is not above $p$.
# The ranks from $q$ on give their arrays to a rank below $q$, wait, and get the result from it.
# `Subgroup` lets you call `butterfly` for the first $q$ ranks. How many steps does it take with six
# ranks?
#
# `messages_of(butterfly_of_any_size, size=6)` checks the sum and returns the messages. If a rank
# waits for a message that nobody sends, interrupt the cell, and create new ranks:
# `ranks = ddl.Ranks(np=RANKS)`.

# %% [markdown]
# ## Solution


# %% tags=["hide-cell"]
def butterfly_of_any_size(group, data):
    power = 1 << (group.size.bit_length() - 1)
    if group.rank >= power:
        group.send(group.rank - power, data)
        return group.recv(group.rank - power)
    partner, total = group.rank + power, data
    if partner < group.size:
        total = total + group.recv(partner)
    total = butterfly(Subgroup(group, range(power)), total)
    if partner < group.size:
        group.send(partner, total)
    return total


for size, steps in [(3, 3), (4, 2), (5, 4), (6, 4), (7, 4), (8, 3)]:
    messages = messages_of(butterfly_of_any_size, size)
    assert messages[-1][0] == steps, (size, messages)
print("Six ranks: one step, the two steps of a butterfly of four, and one more. That makes four.")

# %% tags=["hide-cell"]
ranks.close()

# %% [markdown]
# What next: [Scaling](04_scaling.ipynb) measures how much of a training step is communication.
# [On a cluster](10_on_a_cluster.ipynb) starts a training on several hosts.
