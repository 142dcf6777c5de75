"""Compares easyddl with another version of it: allreduces, steps, and the start of a fit.

    git worktree add ../other COMMIT    # and build it in place, as contribute.md says
    python tutorials/benchmarks/two_versions.py ../other
    python tutorials/benchmarks/two_versions.py ../other --only fit --model resnet50 --ranks 4

Jobs of both versions take turns, in the same environment. Each line has the medians over all jobs,
and the ratio of this version's to the other's.
"""

import argparse
import collections
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve()
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(HERE.parent)]

LIMIT = 900  # seconds of a job
EPOCHS, STEPS = 6, 60  # of the measurement of steps; the first epoch does not count


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", nargs="?", help="the folder of the other version")
    parser.add_argument("--only", nargs="+", default=["bench", "steps", "fit"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--jobs", type=int, default=5, help="of each version")
    parser.add_argument("--sizes", nargs="+", default=["4", "1Ki", "64Ki", "1Mi", "16Mi"])
    parser.add_argument("--model", default="mlp", help="mlp or resnet50, of the start of a fit")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- run by each rank


def model_of(name):
    import keras

    if name == "resnet50":
        model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=10)
    else:
        layers = [keras.layers.Dense(256, "relu") for _ in range(4)]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=name != "resnet50")
    model.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"])
    return model


def job(kind, name):
    """Prints what rank 0 has measured: milliseconds by what they are of."""
    import keras
    import numpy as np

    import easyddl as ddl

    model = model_of(name)
    steps = STEPS if kind == "steps" else 1
    x = np.random.default_rng(ddl.rank()).random((32 * steps, *model.input_shape[1:]))
    y = np.zeros(len(x), "int64")
    times = collections.defaultdict(list)

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if kind == "fit" and batch == 0:
                times[f"{self.name}, wall"].append(time.perf_counter() - self.begin[0])
                times[f"{self.name}, CPU"].append(time.process_time() - self.begin[1])

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch_begin = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            if kind == "steps" and epoch > 0:
                times["a step, wall"].append((time.perf_counter() - self.epoch_begin) / steps)

    clock = Clock()
    for clock.name in ("the first fit", "the second fit")[: 1 + (kind == "fit")]:
        callbacks = [ddl.DDLCallback(), clock, ddl.DDLGlobalVariablesCallback()]
        ddl.barrier()
        clock.begin = time.perf_counter(), time.process_time()
        model.fit(x, y, 32, epochs=EPOCHS if kind == "steps" else 1, verbose=0, callbacks=callbacks)
    if ddl.is_root():
        found = {name: 1e3 * statistics.median(each) for name, each in times.items()}
        print("measured", json.dumps(found), flush=True)


# ---- the comparison


def measure(folder, ranks, arguments):
    import mpi

    env = {"PYTHONPATH": str(folder), "KERAS_BACKEND": os.environ.get("KERAS_BACKEND", "torch")}
    line = mpi.command(ranks, [sys.executable, *map(str, arguments)])
    done = mpi.run_command(line, mpi.environment(env), LIMIT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, line))} with {folder} ended badly:\n{done.stdout}")
    return done.stdout


def bench(folder, ranks, options):
    with tempfile.TemporaryDirectory() as work:
        report = pathlib.Path(work, "report.json")
        arguments = ["-m", "easyddl", "bench", "--sizes", *options.sizes, "--rounds", 7]
        measure(folder, ranks, [*arguments, "--algorithms", "easyddl", "--json", report])
        results = json.loads(report.read_text())["results"]
    return {
        f"allreduce of {each['bytes']} bytes": 1e3 * statistics.median(each["rounds"]["easyddl"])
        for each in results
    }


def measured_job(folder, ranks, kind, options):
    name = options.model if kind == "fit" else "mlp"
    told = measure(folder, ranks, [HERE, "--job", kind, "--model", name])
    line = next(line for line in told.splitlines() if line.startswith("measured "))
    return json.loads(line.partition(" ")[2])


def compare(ranks, kind, options):
    folders = {"this": ROOT, "other": pathlib.Path(options.other).resolve()}
    times = collections.defaultdict(lambda: collections.defaultdict(list))
    for _ in range(options.jobs):
        for version, folder in folders.items():
            if kind == "bench":
                found = bench(folder, ranks, options)
            else:
                found = measured_job(folder, ranks, kind, options)
            for name, each in found.items():
                times[name][version].append(each)
    for name, of in times.items():
        this, other = (statistics.median(of[version]) for version in folders)
        print(
            f"{ranks} ranks  {name:32} {this:10.4f} {other:10.4f} ms  {this / other:6.2f}",
            flush=True,
        )


if __name__ == "__main__":
    options = parse()
    if options.job:
        job(options.job, options.model)
    else:
        for kind in options.only:
            for ranks in options.ranks:
                compare(ranks, kind, options)
