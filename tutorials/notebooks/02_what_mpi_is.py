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
# # What MPI is
#
# A training on many ranks is a program of many processes that exchange messages. This notebook
# shows these messages with arrays of four numbers, computes π with them in two ways, and ends with
# the one message that a training step needs. You should know NumPy.
# [First four lines](01_first_four_lines.ipynb) shows what the ranks are for, and
# [Allreduce, seen](03_allreduce_seen.ipynb) continues where this notebook ends.
#
# To run it, install the extras `tensorflow`, `mpich` and `tutorials`, and open it in Jupyter: see
# [Notebooks](README.md).
#
# MPI, the Message Passing Interface, is a [standard](https://www.mpi-forum.org/docs/). It defines
# functions by which processes exchange data, on one computer or on many.
# [MPICH](https://www.mpich.org) and [Open MPI](https://www.open-mpi.org) are libraries that
# implement it, and [mpi4py](https://mpi4py.readthedocs.io) makes these functions available in
# Python.

# %%
import matplotlib.pyplot as plt
import numpy as np

import easyddl as ddl

# %% [markdown]
# ## Processes, ranks and size
#
# An MPI job is a group of processes that run the same program. Such a group, together with the
# ability to send messages within it, is a *communicator*. The communicator of all processes is
# `COMM_WORLD`. Its *size* is the number of processes, and each process has a number in it, its
# *rank*. A process is often called a rank, too.
#
# This notebook itself runs in one process, the kernel, which is no rank. `ddl.Ranks` starts four
# ranks, and `ranks.run` calls a function on each of them and returns a list of the results
# ([From a notebook](../notebooks.md)).
#
# On a rank, `ddl.init()` starts MPI. mpi4py then uses the same MPI library and finds the same
# ranks. The messages of mpi4py and those of easyddl do not mix, because easyddl sends its own on
# communicators of its own. Import `mpi4py.MPI` in functions that run on ranks, and not in the
# kernel, where the import would start MPI.

# %%
ranks = ddl.Ranks(np=4)


def world():
    """The communicator of all ranks."""
    ddl.init()
    from mpi4py import MPI

    return MPI.COMM_WORLD


def who_am_i():
    import os

    comm = world()
    assert (comm.rank, comm.size) == (ddl.rank(), ddl.size())
    return comm.rank, comm.size, os.getpid()


answers = ranks.run(who_am_i)
for rank, size, process in answers:
    print(f"rank {rank} of {size} is process {process}")
assert [rank for rank, _, _ in answers] == [0, 1, 2, 3]
assert len({process for _, _, process in answers}) == 4

# %% [markdown]
# All ranks ran the same function. The rank is what tells them apart: a function that does something
# else on some ranks asks for it.
#
# ## One message from one rank to another
#
# Processes do not share variables. If one rank needs what another one has, the other must send it.
# `Send` takes an array and the rank to send it to. `Recv` waits for a message from a given rank,
# and writes it into an array that already exists. Both ranks must take part. In the function below,
# rank 0 sends an array to rank 1, and the other ranks do nothing.

# %%


def show(results):
    for rank, result in enumerate(results):
        print(f"rank {rank}: {result}")


def send_to_rank_1():
    comm = world()
    array = np.array([1.0, 2.0, 3.0, 4.0]) if comm.rank == 0 else np.zeros(4)
    if comm.rank == 0:
        comm.Send(array, dest=1)
    elif comm.rank == 1:
        comm.Recv(array, source=0)
    return array


received = ranks.run(send_to_rank_1)
show(received)
assert received[1].tolist() == [1, 2, 3, 4]
assert received[2].tolist() == received[3].tolist() == [0, 0, 0, 0]

# %% [markdown]
# `Send` and `Recv`, with a capital letter, are for arrays. `send` and `recv` take any Python
# object, which mpi4py pickles, and are slower for large data.
#
# In the next function every rank sends to its right neighbour, in a ring. If all ranks called
# `Send` first, each could wait until its neighbour calls `Recv`, and none would get there. Such a
# mutual wait is a *deadlock*. `Sendrecv` sends and receives at the same time, so that it cannot
# happen.

# %%


def pass_to_the_right():
    comm = world()
    mine, from_left = np.array([float(comm.rank)]), np.empty(1)
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.Sendrecv(mine, dest=right, recvbuf=from_left, source=left)
    return from_left.item()


received = ranks.run(pass_to_the_right)
show(received)
assert received == [3, 0, 1, 2]

# %% [markdown]
# ## Collectives: one call, all ranks
#
# Most programs need the same few patterns of messages, in which all ranks take part. MPI has a
# function for each, a *collective*, and the library chooses the messages. All ranks must call it.
# These are six of them:
#
# | collective | result | who has it |
# |---|---|---|
# | broadcast | the array of the root | all ranks |
# | scatter | one part of the array of the root | each rank its own part |
# | gather | the parts of all ranks, in the order of the ranks | the root |
# | allgather | the parts of all ranks, in the order of the ranks | all ranks |
# | reduce | the sum of the arrays of all ranks | the root |
# | allreduce | the sum of the arrays of all ranks | all ranks |
#
# The *root* is a rank that the call names, here rank 0. Instead of the sum, a reduction can compute
# the maximum, the product and other operations. Each function below returns what its rank had
# before the call and has after it. `NaN` marks what a rank does not have.

# %%
NOTHING = np.full(4, np.nan)


def padded(number):
    """An array of four, of which this rank has only the first number."""
    return np.array([number, np.nan, np.nan, np.nan])


def broadcast():
    comm = world()
    before = np.array([1.0, 2.0, 3.0, 4.0]) if comm.rank == 0 else NOTHING.copy()
    after = before.copy()
    comm.Bcast(after, root=0)
    return before, after


def scatter():
    comm = world()
    before = np.array([1.0, 2.0, 3.0, 4.0]) if comm.rank == 0 else NOTHING.copy()
    part = np.empty(1)
    comm.Scatter(before, part, root=0)
    return before, padded(part[0])


def gather():
    comm = world()
    part, after = np.array([comm.rank + 1.0]), NOTHING.copy()
    comm.Gather(part, after, root=0)
    return padded(part[0]), after


def allgather():
    comm = world()
    part, after = np.array([comm.rank + 1.0]), NOTHING.copy()
    comm.Allgather(part, after)
    return padded(part[0]), after


def reduce():
    comm = world()
    before, after = comm.rank + np.array([1.0, 2.0, 3.0, 4.0]), NOTHING.copy()
    comm.Reduce(before, after, root=0)
    return before, after


def allreduce():
    comm = world()
    before, after = comm.rank + np.array([1.0, 2.0, 3.0, 4.0]), NOTHING.copy()
    comm.Allreduce(before, after)
    return before, after


# %%
calls = (broadcast, scatter, gather, allgather, reduce, allreduce)
# For each collective: the arrays before and after it, with one row for each rank.
states = {call.__name__: np.array(ranks.run(call)).swapaxes(0, 1) for call in calls}

one_to_four, sums = [1, 2, 3, 4], [10, 14, 18, 22]
on_root, on_all = np.array([1, 0, 0, 0]) > 0, np.ones(4, bool)
expected = {
    "broadcast": (on_all, one_to_four),
    "gather": (on_root, one_to_four),
    "allgather": (on_all, one_to_four),
    "reduce": (on_root, sums),
    "allreduce": (on_all, sums),
}
for name, (where, row) in expected.items():
    after = states[name][1]
    assert (after[where] == row).all() and np.isnan(after[~where]).all()
assert states["scatter"][1][:, 0].tolist() == one_to_four

# %% [markdown]
# The figure shows these arrays. Each row of a square is the array of one rank.

# %%


def draw(axes, array):
    """Draws the arrays of the ranks as a table with a row for each rank."""
    axes.pcolormesh(np.nan_to_num(array), cmap="Blues", vmin=0, vmax=30, edgecolors="white")
    for (row, column), number in np.ndenumerate(array):
        text = "" if np.isnan(number) else f"{number:g}"
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=9)
    axes.set(xticks=[], yticks=[], ylim=(4, 0), aspect="equal")


figure, grid = plt.subplots(2, 6, figsize=(7.2, 2.9), layout="constrained")
for column, (name, (before, after)) in enumerate(states.items()):
    draw(grid[0, column], before)
    draw(grid[1, column], after)
    grid[0, column].set_title(name, fontsize=10)
for axes, label in zip(grid[:, 0], ("before", "after"), strict=True):
    axes.set_yticks(np.arange(4) + 0.5, [f"rank {rank}" for rank in range(4)])
    axes.set_ylabel(label)
plt.show()

# %% [markdown]
# ## π by quadrature
#
# π is the integral of $4 / (1 + x^2)$ from 0 to 1. The midpoint rule divides the interval into $n$
# strips and adds up their areas. The strips are independent, so the ranks can share them. To
# compute π on many ranks by quadrature or by random numbers is a common first exercise with MPI, as
# in the notebook `00_mpi_pi.ipynb` of Argonne's
# [AI science training series](https://github.com/argonne-lcf/ai-science-training-series).
#
# Two collectives are enough. Only the root knows $n$ at first, as if it had read it from a file,
# and broadcasts it. Each rank adds up every fourth strip. A reduction adds up the four parts on the
# root.

# %%


def pi_by_quadrature():
    """The part of this rank, and the sum of all parts, which only the root receives."""
    comm = world()
    strips = np.array(10_000 if comm.rank == 0 else 0)
    comm.Bcast(strips, root=0)
    middles = (np.arange(comm.rank, strips, comm.size) + 0.5) / strips
    part, total = np.array((4 / (1 + middles**2)).sum() / strips), np.zeros(())
    comm.Reduce(part, total, root=0)
    return part.item(), total.item()


parts, totals = zip(*ranks.run(pi_by_quadrature), strict=True)
print(f"parts {[round(part, 6) for part in parts]}")
print(f"pi is about {totals[0]:.12f}, with an error of {abs(totals[0] - np.pi):.1e}")
assert np.isclose(totals[0], sum(parts)) and totals[1:] == (0, 0, 0)
assert abs(totals[0] - np.pi) < 1e-9

# %% [markdown]
# ## π by Monte Carlo
#
# Draw points at random in the unit square. The fraction that lies within the quarter circle
# $x^2 + y^2 < 1$ is about $\pi / 4$. The estimate is random, with a standard error of
# $\sqrt{\pi(4 - \pi) / n}$ for $n$ points: four times as many points halve it.
#
# Each rank draws points of its own and counts those within the circle. An allreduce adds up the
# counts. The ranks must draw different points, so each needs a random generator of its own.
# `SeedSequence.spawn` makes seeds for such generators: see NumPy's
# [Parallel random number generation](https://numpy.org/doc/stable/reference/random/parallel.html).
# The function below can also give all ranks the same seed, which is a common mistake.
#
# To measure the error, the function repeats the experiment 32 times, with numbers of points that
# double from 64 to 65536 on each rank.

# %%
POINTS = 2 ** np.arange(6, 17)  # on each rank
REPEATS = 32


def pi_by_monte_carlo(same_seed):
    """The estimates of this rank alone, and of all ranks together: a row for each repetition."""
    comm = world()
    seeds = np.random.SeedSequence(7).spawn(comm.size)
    generator = np.random.default_rng(seeds[0 if same_seed else comm.rank])
    inside = np.empty((REPEATS, len(POINTS)), np.int64)
    for repetition in range(REPEATS):
        x, y = generator.random((2, POINTS[-1]))
        inside[repetition] = np.cumsum(x**2 + y**2 < 1)[POINTS - 1]
    inside_on_all = np.empty_like(inside)
    comm.Allreduce(inside, inside_on_all)
    return 4 * inside / POINTS, 4 * inside_on_all / (POINTS * comm.size)


independent = ranks.run(pi_by_monte_carlo, args=(False,))
same_seed = ranks.run(pi_by_monte_carlo, args=(True,))

# %% [markdown]
# With seeds of their own the ranks get different estimates. The estimate of all ranks together is
# better on average, although a single rank can be closer by chance. With the same seed all ranks
# draw the same points. Their estimates are equal, and so is the estimate of all ranks together:
# three of the four ranks have worked for nothing.

# %%
alone, together = zip(*independent, strict=True)
assert len({estimates[0, -1] for estimates in alone}) == 4
assert all(np.array_equal(estimates, together[0]) for estimates in together)

same_alone, same_together = zip(*same_seed, strict=True)
for estimates in (*same_alone, *same_together):
    assert np.array_equal(estimates, same_alone[0])

print("largest number of points, first repetition:")
print("  seeds of their own:", *(f"{each[0, -1]:.5f}" for each in alone), end=", ")
print(f"together {together[0][0, -1]:.5f}")
print("  the same seed:     ", *(f"{each[0, -1]:.5f}" for each in same_alone), end=", ")
print(f"together {same_together[0][0, -1]:.5f}")

# %% [markdown]
# The figure compares the errors with the theory. Both axes are logarithmic, so that the power law
# is a straight line. With the same seed the error is that of a quarter of the points, which is
# twice as large.

# %%


def error(estimates):
    """The root mean square error over the repetitions, for each number of points."""
    return np.sqrt(((estimates - np.pi) ** 2).mean(axis=0))


def standard_error(points):
    return np.sqrt(np.pi * (4 - np.pi) / points)


all_points = 4 * POINTS
for estimates, effective in ((together[0], all_points), (same_together[0], POINTS)):
    assert (abs(np.log2(error(estimates) / standard_error(effective))) < 0.6).all()

plt.figure(figsize=(7, 4))
plt.loglog(all_points, error(same_together[0]), "^", label="4 ranks, the same seed")
plt.loglog(all_points, standard_error(POINTS), "--", color="C0", label="theory for a quarter")
plt.loglog(all_points, error(together[0]), "o", color="C1", label="4 ranks, seeds of their own")
plt.loglog(all_points, standard_error(all_points), color="C1", label="theory for all points")
plt.xlabel("number of points on all ranks together")
plt.ylabel("root mean square error of π")
plt.title("The same seed on all ranks wastes their work")
plt.grid(alpha=0.3)
plt.legend()
plt.show()

# %% [markdown]
# Training is a Monte Carlo method, too: the gradient of a batch estimates the gradient of all data.
# So ranks that draw the same batches, or the same dropout masks, waste their work in the same way.
# `ddl.split_data` gives each rank other samples, and `DDLGlobalVariablesCallback` gives each rank
# other random numbers.
#
# ## The same with easyddl
#
# easyddl has three of these collectives as functions that return a new array: `ddl.broadcast`,
# `ddl.allgather` and `ddl.allreduce`. `ddl.allreduce` computes the mean, unless `op` names
# another operation. They also take numbers, and tensors of TensorFlow, JAX or PyTorch.

# %%


def with_easyddl():
    mine = ddl.rank() + np.array([1.0, 2.0, 3.0, 4.0])
    return {
        "sum": ddl.allreduce(mine, op="sum"),
        "mean": ddl.allreduce(mine),
        "broadcast": ddl.broadcast(mine),
        "allgather": ddl.allgather(mine[: ddl.rank() + 1]),  # a different number on each rank
    }


results = ranks.run(with_easyddl)
for name, array in results[3].items():
    print(f"{name:10} {array}")
for each in results:
    assert each["sum"].tolist() == [10, 14, 18, 22]
    assert each["mean"].tolist() == [2.5, 3.5, 4.5, 5.5]
    assert each["broadcast"].tolist() == [1, 2, 3, 4]
    assert each["allgather"].tolist() == [1, 2, 3, 3, 4, 5, 4, 5, 6, 7]

# %% [markdown]
# They add checks. MPI demands that the arguments of all ranks match, but does not demand that a
# library detects it if they do not: a wrong call may hang, crash or return a wrong result. easyddl
# compares what the ranks pass. If that differs, all ranks raise an error that says what each of
# them has passed, and none is left waiting. In the function below, rank 2 passes a longer array
# than the others.
#
# An exception on a rank arrives in the notebook as a `ddl.RankError`. The ranks can be used
# afterwards.

# %%


def different_shapes():
    return ddl.allreduce(np.ones(3 if ddl.rank() == 2 else 2))


try:
    ranks.run(different_shapes)
except ddl.RankError as failure:
    failed, message = failure.failed, str(failure.__cause__)
print(message)
assert failed == (0, 1, 2, 3)
assert "(3,)" in message and "(2,)" in message
assert [each["mean"][0] for each in ranks.run(with_easyddl)] == [2.5] * 4

# %% [markdown]
# A rank that never calls a collective cannot be detected in this way. Its absence only shows in the
# time: after 60 seconds the waiting ranks print which ranks are missing, and after 600 seconds they
# end the job (`EASYDDL_STALL_WARN` and `EASYDDL_STALL_ABORT` in the
# [Settings](../settings.md)).
#
# ## Why one allreduce in a step is enough
#
# The loss of a batch is a mean over its samples, and so is its gradient. If $k$ ranks hold $n$
# samples each, the gradient over all $kn$ samples is the mean of the $k$ gradients over $n$
# samples, where $g_{ri}$ is the gradient of sample $i$ of rank $r$:
#
# $$\frac{1}{kn} \sum_{r=1}^{k} \sum_{i=1}^{n} g_{ri} = \frac{1}{k} \sum_{r=1}^{k} \Big( \frac{1}{n}
# \sum_{i=1}^{n} g_{ri} \Big)$$
#
# An allreduce computes this mean, and gives the same result to all ranks. Ranks that have the same
# weights before a step, and apply the same gradient, have the same weights after it. So training
# needs one broadcast before the first step, and one allreduce in each step. No weights travel
# during the training.
#
# The next function trains a linear model in this way, with NumPy and two functions of easyddl. The
# ranks draw different initial weights, and the broadcast replaces them by those of rank 0. The
# comparison trains on all samples in one process, the kernel.

# %%
generator = np.random.default_rng(0)
inputs = generator.normal(size=(64, 3))
targets = inputs @ [1.0, -2.0, 3.0]
RATE, STEPS = 0.1, 50


def gradient(weights, x, y):
    """The gradient of the mean of the squared errors."""
    return 2 * x.T @ (x @ weights - y) / len(x)


def initial_weights(seed):
    return np.random.default_rng(seed).normal(size=3)


def train():
    mine = slice(ddl.rank(), None, ddl.size())  # every fourth sample
    weights = ddl.broadcast(initial_weights(seed=ddl.rank()))
    for _ in range(STEPS):
        weights = weights - RATE * ddl.allreduce(gradient(weights, inputs[mine], targets[mine]))
    return weights


def train_in_one_process():
    weights = initial_weights(seed=0)
    for _ in range(STEPS):
        weights = weights - RATE * gradient(weights, inputs, targets)
    return weights


trained, in_one_process = ranks.run(train), train_in_one_process()
show(trained)
print(f"one process: {in_one_process}")
assert all(np.array_equal(weights, trained[0]) for weights in trained)
np.testing.assert_allclose(trained[0], in_one_process, rtol=1e-10)
np.testing.assert_allclose(trained[0], [1, -2, 3], atol=0.01)

# %% [markdown]
# The four ranks hold the same bits. They differ from the one process by rounding at most, because
# the sum has another order. `DDLCallback` does the same for every gradient of a Keras model, and
# `DDLGlobalVariablesCallback` does the broadcast.

# %% [markdown]
# ## Exercise
#
# Each rank draws its own number of samples by
# `np.random.default_rng(ddl.rank()).normal(5, 2, size=100 * (ddl.rank() + 1))`. Write a function
# that returns, on all ranks, the mean and the standard deviation of the samples of all ranks
# together. It may call a collective only once, and that must be an allreduce. Compare the result
# with that of `np.mean` and `np.std` for all samples in one array.
#
# Hint: the mean of the four means is wrong here. Which three sums over all samples do you need?

# %% [markdown]
# ## Solution
#
# The sums are the number of the samples, the sum of their values, and the sum of their squares. One
# array holds all three.

# %% tags=["hide-cell"]


def samples(rank):
    return np.random.default_rng(rank).normal(5, 2, size=100 * (rank + 1))


def mean_and_deviation():
    mine = samples(ddl.rank())
    count, total, squares = ddl.allreduce(
        np.array([len(mine), mine.sum(), (mine**2).sum()]), op="sum"
    )
    mean = total / count
    return float(mean), float(np.sqrt(squares / count - mean**2))


found = ranks.run(mean_and_deviation)
show(found)
everything = np.concatenate([samples(rank) for rank in range(4)])
for mean, deviation in found:
    np.testing.assert_allclose([mean, deviation], [everything.mean(), everything.std()])

# %%
ranks.close()

# %% [markdown]
# ## What next
#
# - [Allreduce, seen](03_allreduce_seen.ipynb) shows the messages of which an allreduce consists.
# - [How it is built](../how_it_is_built.md) explains how easyddl exchanges the gradients of a
#   model.
