"""Trains on two ranks with Keras's own data parallelism and with easyddl, beside one process.

    pip install --pre keras-nightly
    python tutorials/benchmarks/keras_data_parallel.py

It takes Keras 3.16 or later, whose PyTorch backend wraps a model in `DistributedDataParallel` where
`keras.distribution.initialize` has been called. Each case trains on the same global batches in all
three ways. A line tells how far the weights of the two ranks are apart, how far those of rank 0 are
from one process, and the logs of the last epoch; or how the processes ended.
"""

import itertools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

import numpy as np

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "support")]
import mpi  # noqa: E402 - after where it lies has been told

RANKS = 2
TIMEOUT = 120  # seconds; a process that takes longer waits for another one
WAYS = ("one process", "Keras", "easyddl")

OWN_STEP = "train_step that calls self(x)"

# The numbers of samples of each rank's batches.
CASES = {
    "compiled model": ([8] * 6, [8] * 6),
    OWN_STEP: ([8] * 6, [8] * 6),
    "batches of 8 and 2 samples": ([8] * 6, [2] * 6),
    "one batch fewer on rank 1": ([8] * 6, [8] * 5),
}


def make_batches(case, rank):
    """Returns the batches of a rank. For `None`, those of one process: of all ranks at once."""
    random = np.random.default_rng(0)
    by_rank = []
    for sizes in CASES[case]:
        shards = [random.normal(size=(size, 5)).astype("float32") for size in sizes]
        by_rank.append([(x, 3 * x[:, :1] - 2 * x[:, 1:2]) for x in shards])
    if rank is not None:
        return by_rank[rank]
    steps = itertools.zip_longest(*by_rank)
    return [tuple(map(np.concatenate, zip(*filter(None, step), strict=True))) for step in steps]


def make_model(case):
    import keras

    class LargestError(keras.Metric):
        def __init__(self, name="largest_error"):
            super().__init__(name=name)
            self.largest = self.add_variable((), "zeros", name="largest")

        def update_state(self, y_true, y_pred, sample_weight=None):
            error = keras.ops.max(keras.ops.abs(y_true - y_pred))
            self.largest.assign(keras.ops.maximum(self.largest, error))

        def result(self):
            return self.largest.value

    class OwnStep(keras.Model):
        def train_step(self, data):
            x, y = data
            self.zero_grad()
            prediction = self(x, training=True)
            loss = self.compute_loss(x, y, prediction)
            loss.backward()
            weights = self.trainable_weights
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss.detach(), sample_weight=len(x))
            return self.compute_metrics(x, y, prediction)

    keras.utils.set_random_seed(0)
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(16, "tanh")(inputs)
    kind = OwnStep if case == OWN_STEP else keras.Model
    model = kind(inputs, keras.layers.Dense(1)(hidden))
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=[LargestError()])
    return model, LargestError


def train(case, way, folder):
    """Trains as one process of a way, and writes its weights and the logs of its last epoch."""
    import keras

    rank, callbacks = None, []
    if way == "Keras":
        keras.distribution.initialize()
        own_batches = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(own_batches)
        rank = int(os.environ["RANK"])
    model, metric = make_model(case)
    if way == "easyddl":
        import easyddl as ddl

        ddl.register_metric(metric, merge="max")
        rank = ddl.rank()
        callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
    batches = make_batches(case, rank)

    class Data(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            return batches[index]

    history = model.fit(Data(), epochs=2, shuffle=False, verbose=0, callbacks=callbacks).history
    logs = {name: values[-1] for name, values in history.items()}
    weights = np.concatenate([weight.ravel() for weight in model.get_weights()])
    file = pathlib.Path(folder, f"{rank or 0}.json")
    file.write_text(json.dumps([weights.tolist(), logs]))


def start(case, way, folder):
    """Runs the processes of a way. Returns how each failed; `None` for one that did not."""
    line = [sys.executable, __file__, case, way, folder]
    environments = [os.environ]
    if way == "easyddl":
        line = mpi.command(RANKS, line)
    if way == "Keras":
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        of_all = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(RANKS)}
        environments = [{**os.environ, **of_all, "RANK": str(rank)} for rank in range(RANKS)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes = [subprocess.Popen(line, env=each, **quiet) for each in environments]
    return [finish(process) for process in processes]


def finish(process):
    try:
        status = process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"waited for {TIMEOUT} s"
    return f"exit status {status}" if status else None


def read(folder):
    """Returns the weights of each rank that has ended its training, and their logs."""
    found = [json.loads(file.read_text()) for file in sorted(pathlib.Path(folder).iterdir())]
    return [np.array(weights) for weights, _ in found], [logs for _, logs in found]


def show(way, expected, weights, logs, ends):
    facts = [f"process {index}: {end}" for index, end in enumerate(ends) if end]
    if len(weights) == RANKS:
        facts.append(f"ranks apart {np.abs(weights[0] - weights[1]).max():.1e}")
        facts.append(f"from one process {np.abs(weights[0] - expected).max():.1e}")
    shown = {", ".join(f"{name} {value:.3f}" for name, value in log.items()) for log in logs}
    print(f"  {way:12} {', '.join(facts + sorted(shown))}", flush=True)


def main():
    if len(sys.argv) > 1:
        return train(*sys.argv[1:])
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    if tuple(map(int, keras.__version__.split(".")[:2])) < (3, 16):
        sys.exit(f"Keras {keras.__version__} has no data parallelism on PyTorch: install 3.16.")
    for case in CASES:
        print(case)
        expected = None
        for way in WAYS:
            with tempfile.TemporaryDirectory() as folder:
                ends = start(case, way, folder)
                weights, logs = read(folder)
            if way == WAYS[0]:
                expected = weights[0]
            show(way, expected, weights, logs, ends)


if __name__ == "__main__":
    main()
