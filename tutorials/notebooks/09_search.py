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
# # A search
#
# This notebook looks for a good learning rate and batch size. Two jobs of two ranks train at the
# same time, each on cores of its own, and [Optuna](https://optuna.readthedocs.io) chooses what
# they try. You should know [First four lines](01_first_four_lines.ipynb), and from
# [Accuracy](05_accuracy.ipynb) why the rate and the batch size belong together.
#
# To run it, install the extras `tensorflow`, `mpich` and `tutorials`, and open it in Jupyter: see
# [Notebooks](README.md).

# %%
import os
import pathlib
import queue
import warnings

warnings.filterwarnings("ignore", message="IProgress not found")  # no progress bar is shown
import matplotlib.pyplot as plt
import numpy as np
import optuna
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import easyddl as ddl

optuna.logging.set_verbosity(optuna.logging.WARNING)

# %% [markdown]
# ## What a trial trains
#
# The data are scikit-learn's 1797 images of digits. A *trial* trains on the first part with one
# learning rate and one batch size. Its accuracy on the second part, the validation images,
# decides which trial is best. The third part, the test images, is used once at the end. The
# accuracy of the best of many trials on the validation images is too high, because some of its
# advantage is chance.

# %%
images, labels = load_digits(return_X_y=True)
images = images.astype("float32") / 16
x_train, x_rest, y_train, y_rest = train_test_split(
    images, labels, test_size=0.4, stratify=labels, random_state=0
)
x_valid, x_test, y_valid, y_test = train_test_split(
    x_rest, y_rest, test_size=0.5, stratify=y_rest, random_state=0
)
print(f"{len(x_train)} images to train on, {len(x_valid)} to choose by, {len(x_test)} to test")

# %% [markdown]
# `train` is what a rank of a job does. `batch` is the number of images that all ranks of the job
# take in a step, and each takes its share. The rate is used as it is, without `scale_lr`: it is
# the rate for this batch that the search is about. Every trial begins with the same seed, so that
# its result depends on its parameters alone.


# %%
def train(rate, batch, epochs=8):
    """Trains one model on all ranks of a job. Returns facts about it, the same on all ranks."""
    import hashlib

    import keras

    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    x, y = ddl.split_data(x_train, y_train)
    model = keras.Sequential(
        [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10, activation="softmax")]
    )
    optimizer = keras.optimizers.SGD(rate, momentum=0.9)
    model.compile(optimizer, loss="sparse_categorical_crossentropy")
    model.fit(
        x,
        y,
        batch_size=batch // ddl.size(),
        epochs=epochs,
        verbose=0,
        callbacks=[ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()],
    )

    def accuracy(x, y):
        predicted = np.argmax(keras.ops.convert_to_numpy(model(x)), axis=1)
        return float(np.mean(predicted == y))

    weights = b"".join(weight.tobytes() for weight in model.get_weights())
    return {
        "valid": accuracy(x_valid, y_valid),
        "test": accuracy(x_test, y_test),
        "weights": hashlib.sha256(weights).hexdigest(),
        "size": ddl.size(),
    }


# %% [markdown]
# ## Two jobs, each on its own cores
#
# Two jobs that do not know of each other would bind their ranks to the same cores. `cpus` gives
# each job its own. A CPU of Linux is a hardware thread, and two of them can share a core. The
# CPUs of one core should belong to the same job, so the next cell first finds the cores.

# %%
JOBS, RANKS = 2, 2


def cores():
    """The CPUs of each core that this process may use."""
    by_core = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        file = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = file.read_text() if file.exists() else cpu
        by_core.setdefault(core, []).append(cpu)
    return list(by_core.values())


def shares(parts, count):
    """Divides a list of lists of CPUs into equal shares of neighbours."""
    ends = [len(parts) * (i + 1) // count for i in range(count)]
    return [
        [cpu for part in parts[begin:end] for cpu in part]
        for begin, end in zip([0, *ends], ends, strict=False)
    ]


parts = cores()
if len(parts) < JOBS:  # one core with two hardware threads
    parts = [[cpu] for cpu in sorted(os.sched_getaffinity(0))]
cpus = shares(parts, JOBS)
print(f"CPUs of the jobs: {cpus}")

# %% [markdown]
# Each rank computes with one thread, whatever the machine. The order of a sum can depend on the
# number of threads, and the search compares bits below.
#
# The jobs start once and stay for the whole search. Importing Keras takes each rank seconds, and
# a trial often not much longer.

# %%
ONE_THREAD = {"TF_NUM_INTRAOP_THREADS": "1"}
jobs = [ddl.Ranks(np=RANKS, cpus=share, env=ONE_THREAD) for share in cpus]


def place():
    """Where this rank runs."""
    return ddl.rank(), ddl.size(), os.getpid(), os.sched_getaffinity(0)


places = [job.run(place) for job in jobs]
for number, ranks in enumerate(places):
    for rank, size, process, allowed in ranks:
        print(f"job {number}: rank {rank} of {size}, process {process}, CPUs {sorted(allowed)}")

# %% [markdown]
# Each job is a world of its own. In both, `ddl.size()` is 2 and the ranks are 0 and 1.
# `ddl.allreduce`, the four lines and `ddl.is_root()` mean the ranks of one job. No collective
# reaches the other job, so neither waits for the other. `train` therefore needs no change to run
# in one of several jobs.

# %%
for ranks in places:
    assert [(rank, size) for rank, size, _, _ in ranks] == [(0, RANKS), (1, RANKS)]
assert len({process for ranks in places for _, _, process, _ in ranks}) == JOBS * RANKS

used = [set().union(*(allowed for *_, allowed in ranks)) for ranks in places]
assert [sorted(each) for each in used] == [sorted(share) for share in cpus]
assert not used[0] & used[1]

# %% [markdown]
# ## The search
#
# `study.optimize` calls `objective` in `n_jobs` threads. Each call takes a free job from a queue,
# trains on it, and puts it back. A queue may be used by several threads. One `ddl.Ranks` may not:
# it runs one function at a time, and raises an error if another thread calls it meanwhile.
#
# The first six trials are given. They cover the range, and make sure that the search finds
# something good. The others are chosen by TPE, a method that learns from the trials that have
# finished ([Bergstra et al.,
# 2011](https://papers.nips.cc/paper/4443-algorithms-for-hyper-parameter-optimization)). With
# `constant_liar=True` it also takes into account the trials that still run, so that two threads
# do not try the same.

# %%
free_jobs = queue.Queue()
for number in range(JOBS):
    free_jobs.put(number)

BATCHES = (32, 64, 128, 256)


def objective(trial):
    """One trial of the study: the validation accuracy for a rate and a batch size."""
    rate = trial.suggest_float("rate", 1e-3, 1.0, log=True)
    batch = trial.suggest_categorical("batch", BATCHES)
    number = free_jobs.get()
    try:
        results = jobs[number].run(train, args=(rate, batch))
    finally:
        free_jobs.put(number)
    assert results[0] == results[1]  # both ranks have the same model
    trial.set_user_attr("job", number)
    for name, value in results[0].items():
        trial.set_user_attr(name, value)
    return results[0]["valid"]


sampler = optuna.samplers.TPESampler(seed=0, constant_liar=True)
study = optuna.create_study(direction="maximize", sampler=sampler)
for batch in (32, 256):
    for rate in (0.003, 0.1, 1.0):
        study.enqueue_trial({"rate": rate, "batch": batch})
study.optimize(objective, n_trials=12, n_jobs=JOBS)

# %%
trials = sorted(study.trials, key=lambda trial: trial.value, reverse=True)
print("validation    rate  batch  job  trial")
for trial in trials:
    rate, batch, job = trial.params["rate"], trial.params["batch"], trial.user_attrs["job"]
    print(f"{trial.value:10.4f}  {rate:6.4f}  {batch:5}  {job:3}  {trial.number:5}")

best = study.best_trial
assert len(trials) == 12
assert {trial.user_attrs["job"] for trial in trials} == set(range(JOBS))
assert {trial.user_attrs["size"] for trial in trials} == {RANKS}
assert best.value > 0.95

# %% [markdown]
# ## Results
#
# Each point is a trial. At a low rate, large batches have not learned enough in the same number
# of epochs, because they take fewer steps. At a high rate, small batches fail first, because
# their gradients are noisier. So a larger batch needs a larger rate.

# %%
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
for batch, marker in zip(BATCHES, "os^D", strict=True):
    mine = [trial for trial in trials if trial.params["batch"] == batch]
    rates = [trial.params["rate"] for trial in mine]
    axes.plot(rates, [trial.value for trial in mine], marker, label=f"batch of {batch}")
axes.set(xlabel="learning rate", ylabel="validation accuracy", xscale="log", xlim=(8e-4, 1.25))
figure.legend(loc="outside lower center", ncols=len(BATCHES))
plt.show()

given = {
    (trial.params["rate"], trial.params["batch"]): trial.value
    for trial in study.trials
    if trial.number < 6
}
assert given[0.003, 32] > given[0.003, 256] + 0.1
assert given[1.0, 256] > given[1.0, 32] + 0.1

# %% [markdown]
# The next plot shows which job ran which trial, and when. Small batches take longer, because
# their epochs have more steps. A job that has finished takes the next trial at once.

# %%
began = min(trial.datetime_start for trial in trials)
figure, axes = plt.subplots(figsize=(7, 2.5), layout="constrained")
for trial in trials:
    start = (trial.datetime_start - began).total_seconds()
    colour = f"C{BATCHES.index(trial.params['batch'])}"
    place = trial.user_attrs["job"]
    axes.barh(place, trial.duration.total_seconds(), left=start, color=colour, edgecolor="white")
    middle = start + trial.duration.total_seconds() / 2
    axes.annotate(trial.number, (middle, place), ha="center", va="center", color="white")
axes.set(xlabel="seconds", yticks=range(JOBS), yticklabels=[f"job {job}" for job in range(JOBS)])
handles = [plt.Rectangle((0, 0), 1, 1, color=f"C{number}") for number in range(len(BATCHES))]
names = [f"batch of {batch}" for batch in BATCHES]
figure.legend(handles, names, loc="outside lower center", ncols=len(BATCHES))
plt.show()

# %% [markdown]
# Which trials TPE chooses can depend on the order in which trials finish. What a trial finds does
# not. The best one gives the same bits again on the other job:

# %%
other = jobs[1 - best.user_attrs["job"]]
for again in other.run(train, kwargs=best.params):
    assert again["weights"] == best.user_attrs["weights"]
    assert again["valid"] == best.value
print(f"best: rate {best.params['rate']:.4f}, batch {best.params['batch']}")
print(f"validation accuracy {best.value:.4f}, test accuracy {best.user_attrs['test']:.4f}")
assert best.user_attrs["test"] > 0.93

# %% [markdown]
# ## More trials at once, or more ranks for each?
#
# A host with `c` cores can run `c` trials of one rank, or fewer trials of more ranks.
#
# - **More trials at once** is the first choice. Trials do not communicate, so `c` trials of one
#   rank finish more work per hour than `c / k` trials of `k` ranks.
# - **Ranks within a trial** pay off if there are fewer trials than cores, if a single trial takes
#   too long, or if its batch does not fit into the memory of one device. They also help a method
#   such as TPE, which chooses better if more trials have finished: two fast trials after each
#   other tell it more than two slow ones side by side.
# - **Memory** limits both. Every rank imports the framework and holds a model.
#
# ## From the search to the long training
#
# A rate belongs to the batch of all ranks. Let the search find the rate `r` on `k` ranks with `n`
# images each. On `K` ranks with `n` images each, the batch is `K / k` times as large. The
# [rule](../four_lines.md#3-kerasoptimizerssgdddlscale_lr001) for SGD multiplies the rate by the
# same factor, and that for Adam by its square root. `scale_lr` multiplies by `K`, so divide by
# `k`, or by its square root:
#
#     optimizer = keras.optimizers.SGD(ddl.scale_lr(r / k))
#     optimizer = keras.optimizers.Adam(ddl.scale_lr(r / k**0.5, rule="sqrt"))
#
# If the `K` ranks share the same batch, so that each has fewer images, leave the rate as it is. A
# rule is a starting point. For a batch that is much larger, search again near its rate, and use a
# [warmup](05_accuracy.ipynb).

# %%


def scaled(rate):
    """What `scale_lr` makes of a rate that was found on this number of ranks."""
    return ddl.scale_lr(rate / RANKS), ddl.scale_lr(rate / RANKS**0.5, rule="sqrt")


for job in jobs:
    for rates in job.run(scaled, args=(0.03,)):
        np.testing.assert_allclose(rates, 0.03)  # the same number of ranks, the same rate

# %% [markdown]
# ## Several hosts
#
# `cpus` divides one host. To use others, give each job hosts of its own:
#
#     jobs = [ddl.Ranks(np=8, hosts=f"{host}:8") for host in ("h1", "h2")]
#
# The rest of the notebook stays the same: the queue holds as many jobs as there are hosts. A job
# may also have several hosts, as in `hosts="h1:4,h2:4"`. GPUs of one host are divided by
# `env={"CUDA_VISIBLE_DEVICES": "0,1"}`. [From a notebook](../notebooks.md#several-hosts) says
# what hosts need.
#
# Interrupting the cell of a search stops it after the trials that run at that moment.
#
# ## Exercise
#
# Check the linear rule. Take a batch of 32 images at rates 0.01, 0.02 and 0.04, and a batch of
# 128 images at four times these rates. Run the six trainings on both jobs at once, with
# `concurrent.futures.ThreadPoolExecutor` and the queue. How far apart are the accuracies of the
# small and the large batch?
#
# ## Solution

# %% tags=["hide-cell"]
from concurrent.futures import ThreadPoolExecutor


def run_on_free_job(rate, batch):
    """The validation accuracy, trained on the next job that is free."""
    number = free_jobs.get()
    try:
        return jobs[number].run(train, args=(rate, batch))[0]["valid"]
    finally:
        free_jobs.put(number)


RATES = (0.01, 0.02, 0.04)
with ThreadPoolExecutor(JOBS) as pool:
    small = pool.map(run_on_free_job, RATES, [32] * len(RATES))
    large = pool.map(run_on_free_job, [4 * rate for rate in RATES], [128] * len(RATES))
    found = list(zip(RATES, small, large, strict=True))
for rate, of_small, of_large in found:
    print(f"batch 32, rate {rate}: {of_small:.4f}; batch 128, rate {4 * rate}: {of_large:.4f}")
apart = max(abs(of_small - of_large) for _, of_small, of_large in found)
print(f"at most {apart:.4f} apart: {apart * len(x_valid):.0f} of {len(x_valid)} images")
assert apart < 0.05

# %% tags=["hide-cell"]
for job in jobs:
    job.close()

# %% [markdown]
# ## What next
#
# - [From a notebook](../notebooks.md#several-jobs-side-by-side): jobs side by side, without a
#   search.
# - [On a cluster](10_on_a_cluster.ipynb): the long training that follows the search.
