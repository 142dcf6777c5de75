"""Times a step of training on two hosts at 1 Gbit/s, where the exchange can hide.

    sudo python tutorials/benchmarks/overlap.py
    sudo python tutorials/benchmarks/overlap.py --mbit 250

The hosts are network namespaces of this machine, so it needs root, iproute2 and MPICH. In turns
each rank takes a step of training without easyddl, an exchange of as many bytes as the model has
gradients, and a step with easyddl. The batch is made so large that the backward pass, two
thirds of a step, takes as long as the exchange. A perfect overlap would make the step with
easyddl as long as the longer of the step and the exchange by themselves.

The cores that compute also play the network here. With a slower wire each byte hides behind more
of the computation, and what it costs those cores weighs less.
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parents[2] / "tests"
LAYERS, WIDTH = 32, 512  # gradients of 33.6 MB, in layers of 1 MB
STEPS = 12
TRIAL_BATCH = 256


def start(rate, rounds):
    """Makes the hosts, and starts this script on them."""
    sys.path[:0] = [str(TESTS / "support"), str(TESTS / "hosts")]
    import mpi
    import network

    if network.missing() is not None:
        sys.exit(network.missing())
    with tempfile.TemporaryDirectory() as folder, network.Network(2, mbit=rate) as two:
        env = two.environment({"EASYDDL_TIMELINE": folder, "TF_CPP_MIN_LOG_LEVEL": "3"})
        env.setdefault("PYTHONPATH", mpi.environment()["PYTHONPATH"])
        line = two.mpirun(1, [__file__, "--on-a-host", "--rounds", str(rounds)])
        subprocess.run(line, env=env, stdin=subprocess.DEVNULL, check=True)
        line = [sys.executable, "-m", "easyddl", "timeline", folder]
        subprocess.run(line, env=env, check=True)


def build(keras):
    layers = [keras.layers.Dense(WIDTH, activation="relu") for _ in range(LAYERS)]
    model = keras.Sequential([keras.layers.Input((WIDTH,)), *layers])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
    return model


def step_seconds(model, batch, callbacks=()):
    """The median step of this rank; its first steps, in which TensorFlow traces, do not count."""
    import keras
    import numpy as np

    ends = []
    clock = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs=None: ends.append(time.perf_counter())
    )
    x = np.random.default_rng(0).random((batch * STEPS, WIDTH), np.float32)
    first, last = callbacks or ([], [])
    model.fit(x, x, batch_size=batch, verbose=0, shuffle=False, callbacks=[*first, clock, *last])
    return float(statistics.median(np.diff(ends[3:])))


def measure(rounds):
    import keras
    import numpy as np
    import tensorflow as tf

    import easyddl as ddl

    # A thread computes; another starts what has become ready meanwhile, as an exchange.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    plain, together = build(keras), build(keras)
    gradients = np.zeros(plain.count_params(), np.float32)

    def exchange_seconds():
        ddl.barrier()
        begin = time.perf_counter()
        ddl.allreduce(gradients)
        return time.perf_counter() - begin

    def slowest(seconds):
        return float(ddl.allreduce(seconds, "max"))

    exchange_seconds()
    exchange = slowest(statistics.median(exchange_seconds() for _ in range(5)))
    batch = TRIAL_BATCH
    for _ in range(3):  # the time of a step is not quite in proportion to its batch
        batch = int(batch * exchange / (slowest(step_seconds(plain, batch)) * 2 / 3))
    found = {"step alone": [], "exchange alone": [], "step with easyddl": []}
    for _ in range(rounds):
        found["step alone"].append(slowest(step_seconds(plain, batch)))
        found["exchange alone"].append(slowest(exchange_seconds()))
        callbacks = [ddl.DDLCallback()], [ddl.DDLGlobalVariablesCallback()]
        found["step with easyddl"].append(slowest(step_seconds(together, batch, callbacks)))
    if not ddl.is_root():
        return
    print(f"{gradients.nbytes / 1e6:.1f} MB of gradients, batch {batch}, {ddl.num_nodes()} hosts")
    medians = {name: statistics.median(seconds) for name, seconds in found.items()}
    for name, seconds in found.items():
        listed = " ".join(f"{each * 1e3:.0f}" for each in seconds)
        print(f"{name:18} {medians[name] * 1e3:5.0f} ms   of {listed}")
    longer = max(medians["step alone"], medians["exchange alone"])
    print(f"with easyddl / the longer of the two: {medians['step with easyddl'] / longer:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mbit", type=int, default=1000, help="the speed of each host's wire")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--on-a-host", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.on_a_host:
        os.environ.setdefault("KERAS_BACKEND", "tensorflow")
        measure(options.rounds)
    else:
        start(options.mbit, options.rounds)


if __name__ == "__main__":
    main()
