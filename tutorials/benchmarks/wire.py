"""Times training between hosts that send gradients in 32 and in 16 bits, and compares accuracies.

    sudo python tutorials/benchmarks/wire.py --mbit 100 1000 10000
    python tutorials/benchmarks/wire.py --accuracy

The hosts are network namespaces of this machine, which need root, iproute2 and MPICH. In one job
all kinds take turns, on PyTorch: steps without communication, easyddl's with float32, bfloat16 and
float16 between hosts, and PyTorch's own DistributedDataParallel over gloo, with and without its
hook that compresses to float16, as that for bfloat16 needs NCCL. A step is the slowest rank's
median. The bound is the longer of the computation and the time that the bytes take which must
leave a host.

`--accuracy` trains a small network on scikit-learn's digits, with each seed on one process, and on
four ranks that count as hosts of their own, with float32, bfloat16 and float16.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BATCH = 64
SHAPES = {"mnist_cnn": (28, 28, 1), "mlp": (784,)}
STEPS, WARM_UP = {"mnist_cnn": 12, "mlp": 6}, 2
DTYPES = ("float32", "bfloat16", "float16")
OF_KERAS, OF_TORCH = ("alone", *DTYPES), ("DDP", "DDP float16")
KINDS = OF_KERAS + OF_TORCH
SEEDS = 5


def start(rate, options):
    sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("support", "hosts")]
    import mpi
    import network

    if network.missing() is not None:
        sys.exit(network.missing())
    with network.Network(2, mbit=rate) as two:
        env = {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        env = two.environment(env)
        env.setdefault("PYTHONPATH", mpi.environment()["PYTHONPATH"])
        address = two.address("h1")
        line = [__file__, "--on-a-host", address, "--mbit", rate, "--rounds", options.rounds]
        line = [*map(str, line), "--models", *options.models]
        subprocess.run(
            two.mpirun(options.ranks, line), env=env, stdin=subprocess.DEVNULL, check=True
        )


def by_keras(name, shape, kind):
    """Returns a function that takes the steps of a round, and returns their seconds."""
    import keras
    import numpy as np
    from networks import MODELS

    import easyddl as ddl

    model, _ = MODELS[name][0]()
    random = np.random.default_rng(ddl.rank())
    x = random.random((BATCH * STEPS[name], *shape), np.float32)
    y = random.integers(0, 10, len(x))

    def train():
        ends = [time.perf_counter()]
        clock = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs=None: ends.append(time.perf_counter())
        )
        callbacks = [clock]
        if kind != "alone":
            first = ddl.DDLCallback(wire_dtype=kind)
            callbacks = [first, clock, ddl.DDLGlobalVariablesCallback()]
        model.fit(x, y, batch_size=BATCH, verbose=0, shuffle=False, callbacks=callbacks)
        return np.diff(ends)

    return train, model.count_params()


def by_torch(name, shape, kind):
    """The same with PyTorch's DistributedDataParallel."""
    import numpy as np
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from weak_scaling import torch_model

    model = torch.nn.parallel.DistributedDataParallel(torch_model(name))
    if kind == "DDP float16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    parameters = model.parameters()
    is_mlp = name == "mlp"
    optimizer = (
        torch.optim.SGD(parameters, 0.01, momentum=0.9) if is_mlp else torch.optim.Adam(parameters)
    )
    x = torch.rand((BATCH, *(shape if is_mlp else (1, 28, 28))))
    y = torch.randint(0, 10, (BATCH,))

    def train():
        ends = [time.perf_counter()]
        for _ in range(STEPS[name]):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            ends.append(time.perf_counter())
        return np.diff(ends)

    return train


def measure(address, rate, names, rounds):
    import numpy as np
    import torch

    import easyddl as ddl

    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://{address}:29500", rank=ddl.rank(), world_size=ddl.size()
    )
    for name in names:
        shape = SHAPES[name]
        train = {kind: by_torch(name, shape, kind) for kind in OF_TORCH}
        for kind in OF_KERAS:
            train[kind], parameters = by_keras(name, shape, kind)
        found = {kind: [] for kind in KINDS}
        for _ in range(rounds):
            for kind in KINDS:
                ddl.barrier()
                step = np.median(train[kind]()[WARM_UP:])
                found[kind].append(float(ddl.allreduce(step, "max")))
        steps = {kind: statistics.median(seconds) for kind, seconds in found.items()}
        if ddl.is_root():
            where = f"{rate} Mbit/s, {ddl.num_nodes()} x {ddl.local_size()} ranks, {name}"
            print(f"{where}: seconds a step, and over the bound")
            for kind in KINDS:
                size = 2 if "float16" in kind else 4
                wire = 0 if kind == "alone" else parameters * size * 8 / (rate * 1e6)
                bound = max(steps["alone"], wire)
                print(f"  {kind:14} {steps[kind]:.3f}  {steps[kind] / bound:.2f}", flush=True)
    torch.distributed.destroy_process_group()


def accuracy():
    """The held-out accuracies of each seed in this job, with the dtype of the environment."""
    import keras
    import numpy as np
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    import easyddl as ddl

    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(
        images.astype("float32") / 16, labels, test_size=0.25, stratify=labels, random_state=0
    )
    x, y = ddl.split_data(x[:1344], y[:1344])
    found = []
    for seed in range(SEEDS):
        keras.utils.set_random_seed(seed)
        layers = [keras.layers.Dense(n, activation="relu") for n in (64, 64)]
        model = keras.Sequential(
            [keras.layers.Input((64,)), *layers, keras.layers.Dense(10, activation="softmax")]
        )
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        callbacks = [ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()]
        model.fit(x, y, batch_size=32 // ddl.size(), epochs=20, verbose=0, callbacks=callbacks)
        found.append(100 * model.evaluate(x_test, y_test, verbose=0)[1])
    if ddl.is_root():
        error = np.std(found, ddof=1) / np.sqrt(SEEDS)
        each = " ".join(f"{one:.2f}" for one in found)
        print(f"{sys.argv[2]:22} {np.mean(found):.2f} +- {error:.2f} %   of {each}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=int, nargs="+", default=[1000], help="of a host's wire")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--ranks", type=int, default=1, help="on each host")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--accuracy", nargs="?", const="start", metavar="JOB")
    parser.add_argument("--on-a-host", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_a_host:
        measure(options.on_a_host, options.mbit[0], options.models, options.rounds)
    elif options.accuracy == "start":
        jobs = [("one process", 1, "float32"), *((f"4 hosts, {each}", 4, each) for each in DTYPES)]
        for job, ranks, dtype in jobs:
            env = {"EASYDDL_HOSTS": "a,b,c,d"[: 2 * ranks - 1], "EASYDDL_WIRE_DTYPE": dtype}
            line = ["mpirun", "-np", str(ranks), sys.executable, __file__, "--accuracy", job]
            subprocess.run(line, env={**os.environ, **env}, check=True)
    elif options.accuracy:
        accuracy()
    else:
        for rate in options.mbit:
            start(rate, options)


if __name__ == "__main__":
    main()
