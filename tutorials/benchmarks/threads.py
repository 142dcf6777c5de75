"""Compares thread counts and input pipelines of ranks that share the cores of one machine.

    python tutorials/benchmarks/threads.py                    threads of a rank, on each backend
    python tutorials/benchmarks/threads.py --what input       input pipelines

Threads: the ranks train on arrays in memory. In one setting each rank has its share of the cores,
as easyddl sets it. In the other each rank has as many threads as the machine has cores, as a
framework takes them by itself. The number of threads is fixed when a process starts. Therefore
each measurement is a job, and the jobs of the settings take turns.

Input: each sample needs work on a core, as decoding or augmentation does. The settings take turns
within one job, epoch by epoch. The row "in memory" needs no such work: it is the limit.

Printed are the samples per second of all ranks together: the median over the rounds.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "support")]
import mpi  # noqa: E402 - after where it lies has been told

CORES = len(os.sched_getaffinity(0))
VARIABLES = {
    "tensorflow": ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
    "jax": ("NPROC",),
    "torch": ("OMP_NUM_THREADS",),
}
EPOCHS = 3  # and one before, which does not count
STEPS = 12  # of a rank in an epoch
BATCH, SIDE = 32, 48  # samples and pixels of the pipelines
KINDS = {"tf.data": "tensorflow", "PyDataset": "tensorflow", "DataLoader": "torch"}


def report(speeds, file):
    """Writes what rank 0 has found."""
    import easyddl as ddl

    if ddl.is_root():
        pathlib.Path(file).write_text(json.dumps(speeds))


def train_in_memory(file):
    """What a rank does for a setting of the threads."""
    import easyddl as ddl  # before any framework, whose threads it limits

    # isort: split
    import numpy as np
    from epoch_clock import EpochClock
    from networks import MODELS

    make, _ = MODELS["mnist_cnn"]
    model, shape = make()
    random = np.random.default_rng(0)
    count = 64 * STEPS
    x = random.random((count, *shape), np.float32)
    y = random.integers(0, 10, count)
    clock = EpochClock()
    callbacks = [ddl.DDLCallback(), clock, ddl.DDLGlobalVariablesCallback()]
    model.fit(x, y, batch_size=64, epochs=EPOCHS + 1, verbose=0, callbacks=callbacks)
    report(ddl.size() * count / statistics.median(clock.seconds[1:]), file)


def spoil(image):
    """Some milliseconds of a core's work on an image, as an augmentation would be."""
    import numpy as np

    spectrum = np.fft.fft2(image, axes=(0, 1))
    for _ in range(6):
        spectrum = np.fft.fft2(np.fft.ifft2(spectrum, axes=(0, 1)).real, axes=(0, 1))
    return np.fft.ifft2(spectrum, axes=(0, 1)).real.astype("float32")


def images_and_labels():
    import numpy as np

    random = np.random.default_rng(0)
    count = BATCH * STEPS
    return random.random((count, SIDE, SIDE, 3), np.float32), random.integers(0, 10, count)


def tf_datasets(threads):
    """Pipelines of tf.data, by name, for a rank that has a number of threads."""
    import tensorflow as tf

    images, labels = images_and_labels()

    def work(image, label):
        for _ in range(20):
            image = tf.image.resize(tf.image.resize(image, (96, 96)), (SIDE, SIDE))
        return image, label

    def make(options=None, cached=False, **arguments):
        dataset = tf.data.Dataset.from_tensor_slices((images, labels)).map(work, **arguments)
        dataset = dataset.batch(BATCH)
        dataset = (dataset.cache() if cached else dataset).prefetch(2)
        return dataset.with_options(options) if options else dataset

    limited = tf.data.Options()
    limited.threading.private_threadpool_size = threads
    limited.autotune.cpu_budget = threads
    return {
        "in memory": make(cached=True),
        "one call at a time": make(),
        f"num_parallel_calls={threads}": make(num_parallel_calls=threads),
        "AUTOTUNE": make(num_parallel_calls=tf.data.AUTOTUNE),
        "AUTOTUNE, limited": make(limited, num_parallel_calls=tf.data.AUTOTUNE),
    }


def py_datasets(threads):
    """The same work in NumPy, in a `PyDataset` with some workers."""
    import keras
    import numpy as np

    images, labels = images_and_labels()

    class Images(keras.utils.PyDataset):
        def __len__(self):
            return STEPS

        def __getitem__(self, index):
            rows = slice(index * BATCH, (index + 1) * BATCH)
            return np.stack([spoil(image) for image in images[rows]]), labels[rows]

    class InMemory(Images):
        def __getitem__(self, index):
            rows = slice(index * BATCH, (index + 1) * BATCH)
            return images[rows], labels[rows]

    processes = {"use_multiprocessing": True, "max_queue_size": 4}
    return {
        "in memory": InMemory(),
        "no workers": Images(workers=0),
        "2 threads": Images(workers=2, max_queue_size=4),
        "1 process": Images(workers=1, **processes),
        "2 processes": Images(workers=2, **processes),
    }


def loaders(threads):
    """The same work in NumPy, in PyTorch's `DataLoader`."""
    import torch

    images, labels = images_and_labels()

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return len(images)

        def __getitem__(self, index):
            return spoil(images[index]), labels[index]

    def make(workers):
        options = {"num_workers": workers, "persistent_workers": workers > 0}
        return torch.utils.data.DataLoader(Images(), batch_size=BATCH, **options)

    tensors = torch.utils.data.TensorDataset(torch.as_tensor(images), torch.as_tensor(labels))
    return {
        "in memory": torch.utils.data.DataLoader(tensors, batch_size=BATCH),
        "num_workers=0": make(0),
        "num_workers=1": make(1),
        "num_workers=2": make(2),
    }


def threads_of_this_rank():
    """The number of threads that easyddl has set, or that the framework takes by itself."""
    import keras

    if keras.backend.backend() == "torch":
        import torch

        return torch.get_num_threads()
    import tensorflow as tf

    return tf.config.threading.get_intra_op_parallelism_threads() or CORES


def train_from_pipelines(kind, rounds, file):
    """What a rank does for a kind of pipeline."""
    import easyddl as ddl  # before any framework, whose threads it limits

    # isort: split
    import keras
    from epoch_clock import EpochClock

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((SIDE, SIDE, 3)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(4),
            layers.Flatten(),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    ddl.init()  # the ranks then know how many of them share the cores
    make = {"tf.data": tf_datasets, "PyDataset": py_datasets, "DataLoader": loaders}[kind]
    pipelines = make(threads_of_this_rank())
    speeds = {name: [] for name in pipelines}
    for _ in range(rounds + 1):
        for name, data in pipelines.items():
            clock = EpochClock()
            callbacks = [ddl.DDLCallback(), clock, ddl.DDLGlobalVariablesCallback()]
            model.fit(data, shuffle=False, verbose=0, callbacks=callbacks)
            speeds[name].append(ddl.size() * BATCH * STEPS / clock.seconds[0])
    # In the first round frameworks compile, caches are filled and workers start.
    report({name: statistics.median(found[1:]) for name, found in speeds.items()}, file)


def job(ranks, backend, file, arguments, settings=()):
    """What rank 0 of a job has reported."""
    line = mpi.command(ranks, [sys.executable, __file__, "--worker", *arguments, file])
    env = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", **dict(settings)}
    subprocess.run(line, check=True, env=env, timeout=900)
    return json.loads(pathlib.Path(file).read_text())


def compare_threads(backend, options, file):
    everything = {name: str(CORES) for name in VARIABLES[backend]}
    settings = {"its share": {}, "all cores": everything}
    speeds = {name: [] for name in settings}
    for _ in range(options.rounds):
        for name, found in speeds.items():
            found.append(job(options.ranks, backend, file, ["threads"], settings[name]))
    share = f"its share ({max(1, math.floor(CORES / options.ranks))})"
    names = {"its share": share, "all cores": f"all cores ({CORES})"}
    medians = {names[name]: statistics.median(found) for name, found in speeds.items()}
    show(f"{backend}, threads of a rank", medians, share)


def compare_input(kind, options, file):
    arguments = ["input", kind, str(options.rounds)]
    show(kind, job(options.ranks, KINDS[kind], file, arguments), "in memory")


def show(title, medians, first):
    print(f"{title}: samples/s of all ranks, ratio to {first!r}")
    for name, median in medians.items():
        print(f"  {name:24} {median:10.0f} {median / medians[first]:6.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--what", choices=["threads", "input"], default="threads")
    parser.add_argument("--backends", nargs="+", choices=list(VARIABLES), default=list(VARIABLES))
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        what, *arguments, file = options.worker
        if what == "threads":
            return train_in_memory(file)
        return train_from_pipelines(arguments[0], int(arguments[1]), file)
    print(f"{options.ranks} ranks on {CORES} cores, {options.rounds} rounds")
    with tempfile.TemporaryDirectory() as folder:
        file = str(pathlib.Path(folder, "speed.json"))
        for each in options.backends if options.what == "threads" else options.kinds:
            compare = compare_threads if options.what == "threads" else compare_input
            compare(each, options, file)


if __name__ == "__main__":
    main()
