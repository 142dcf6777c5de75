"""Compares how training speed grows from one process to several, with easyddl and its rivals.

    python tutorials/benchmarks/weak_scaling.py --backend tensorflow
    python tutorials/benchmarks/weak_scaling.py --backend jax
    python tutorials/benchmarks/weak_scaling.py --backend torch
    python tutorials/benchmarks/weak_scaling.py --backend torch --ranks 4 --launcher run

Each process has one core, and takes batches of 64. In turns it trains:

- `one`: one process, by Keras alone;
- `control`: `--ranks` such processes at the same time, which do not communicate;
- `easyddl`: as many ranks with easyddl's callbacks;
- `DataParallel` (JAX): processes under keras.distribution.DataParallel, over gloo;
- `torch one`, `torch control`, `DDP` (PyTorch): a loop in plain PyTorch with the same network, on
  one process, on those that do not communicate, and under DistributedDataParallel over gloo.

All processes that train by Keras, but those of DataParallel, have the numbers of threads that
easyddl gives its ranks: they import it.

A process' speed is that of its median epoch, after one in which frameworks compile; a job's is its
slowest process'. The efficiency is the speed of one of several processes over one alone. Where
a machine's speed changes from one round to the next, the ratios within rounds tell more than that
of the medians: both are printed.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "support")]
import mpi  # noqa: E402 - after where it lies has been told

BATCH = 64
EPOCHS = 3  # and one before, which does not count
STEPS = {"mnist_cnn": 15, "mlp": 10, "transformer": 15}  # of an epoch
WAYS = {
    "tensorflow": ("one", "control", "easyddl"),
    "jax": ("one", "control", "easyddl", "DataParallel"),
    "torch": ("one", "control", "easyddl", "torch one", "torch control", "DDP"),
}
RIVALS = {
    "tensorflow": (),
    "jax": (("DataParallel", "control"), ("DataParallel", "one")),
    "torch": (("DDP", "torch control"), ("DDP", "torch one")),
}


def rank():
    return int(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or 0)


def data(shape):
    import numpy as np

    random = np.random.default_rng(rank())
    return random.random(shape, np.float32), random.integers(0, 10, len(random.random(shape[0])))


def train_by_keras(way, name, port, ranks):
    if way != "DataParallel":  # before anything else: it shares out the cores
        import easyddl as ddl
    import keras
    from epoch_clock import EpochClock
    from networks import MODELS

    if way == "DataParallel":
        keras.distribution.initialize(f"127.0.0.1:{port}", ranks, rank())
        parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
        keras.distribution.set_distribution(parallel)
    model, shape = MODELS[name][0]()

    clock = EpochClock()
    callbacks = [clock]
    if way == "easyddl":
        callbacks = [ddl.DDLCallback(), clock, ddl.DDLGlobalVariablesCallback()]
    x, y = data((BATCH * STEPS[name], *shape))
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS + 1, verbose=0, shuffle=False,
              callbacks=callbacks)  # fmt: skip
    return clock.seconds[1:]


def torch_transformer():
    from torch import nn

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            block = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
            self.first, self.last = nn.Linear(16, 128), nn.Linear(128, 10)
            self.blocks = nn.TransformerEncoder(block, 2)

        def forward(self, x):
            return self.last(self.blocks(self.first(x)).mean(1))

    return Transformer()


def torch_model(name):
    from torch import nn

    if name == "transformer":
        return torch_transformer()
    if name == "mlp":
        return nn.Sequential(
            nn.Linear(784, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)
        )
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, 10),
    )  # fmt: skip


def train_by_torch(way, name, port, ranks):
    import torch

    model = torch_model(name)
    if way == "DDP":
        torch.distributed.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank(), world_size=ranks
        )
        model = torch.nn.parallel.DistributedDataParallel(model)
    if name == "mlp":
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    else:
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    shape = {"mlp": (784,), "mnist_cnn": (1, 28, 28), "transformer": (49, 16)}[name]
    x, y = map(torch.from_numpy, data((BATCH * STEPS[name], *shape)))
    seconds = []
    for _ in range(EPOCHS + 1):
        begin = time.perf_counter()
        for start in range(0, len(x), BATCH):
            optimizer.zero_grad()
            found = model(x[start : start + BATCH])
            torch.nn.functional.cross_entropy(found, y[start : start + BATCH]).backward()
            optimizer.step()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def work(way, name, port, folder, ranks):
    """What one process does. It leaves its speed in a file."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank() % len(cores)]})
    train = train_by_torch if way in ("torch one", "torch control", "DDP") else train_by_keras
    seconds = train(way, name, port, int(ranks))
    speed = BATCH * STEPS[name] / statistics.median(seconds)
    pathlib.Path(folder, f"{rank()}.json").write_text(json.dumps(speed))


def speed_of(way, name, options, folder):
    """The samples per second of a job's slowest process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    count = 1 if way.endswith("one") else options.ranks
    worker = [sys.executable, __file__, "--worker", way, name, port, folder, count]
    if options.launcher == "mpirun":
        line = mpi.command(count, worker)
    else:
        line = [sys.executable, "-m", "easyddl", "run", "-np", count, "--", *worker]
    environment = {**os.environ, "KERAS_BACKEND": options.backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(list(map(str, line)), check=True, env=environment, timeout=600)
    return min(json.loads(pathlib.Path(folder, f"{r}.json").read_text()) for r in range(count))


def compare(name, options, folder):
    speeds = {way: [] for way in WAYS[options.backend]}
    for _ in range(options.rounds):
        for way in speeds:
            speeds[way].append(speed_of(way, name, options, folder))
            print(f"  {way:14} {speeds[way][-1]:8.0f} samples/s a process", flush=True)
    median = {way: statistics.median(found) for way, found in speeds.items()}
    print(
        f"{options.backend}, {name}, {options.ranks} ranks by {options.launcher}: "
        f"medians of {options.rounds} rounds"
    )
    for way, over in (("easyddl", "control"), ("easyddl", "one"), *RIVALS[options.backend]):
        in_turn = sorted(a / b for a, b in zip(speeds[way], speeds[over], strict=True))
        print(
            f"  {way} / {over}: {median[way] / median[over]:.2f}; round by round "
            f"{in_turn[0]:.2f} to {in_turn[-1]:.2f}, median {statistics.median(in_turn):.2f}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=list(WAYS), default="jax")
    parser.add_argument("--models", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--launcher", choices=["mpirun", "run"], default="mpirun")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(*options.worker)
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            compare(name, options, folder)


if __name__ == "__main__":
    main()
