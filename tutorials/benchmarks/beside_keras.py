"""Compares the training of ranks under easyddl with that of one process by Keras alone.

    python tutorials/benchmarks/beside_keras.py --backend jax --ranks 1 2

On a machine with GPUs each rank has one, and TensorFlow's steps are compiled by XLA; on others all
train on the cores, which they share. What is compared is the samples per second of a process, as a
median of epochs after one in which frameworks compile, and of rounds, in which all take turns.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "support")]
import mpi  # noqa: E402 - after where it lies has been told

EPOCHS = 3  # and one before, which does not count


def train(name, batch, file):
    """What one process does: without mpirun, Keras alone."""
    is_rank = bool(os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK"))
    if is_rank:  # before anything else: it gives each rank its GPU, or its cores
        import easyddl as ddl
    import numpy as np
    from epoch_clock import EpochClock
    from networks import MODELS

    make, steps = MODELS[name]
    model, shape = make()

    clock = EpochClock()
    callbacks = [ddl.DDLCallback(), clock, ddl.DDLGlobalVariablesCallback()] if is_rank else [clock]
    random = np.random.default_rng(0)
    x = random.random((batch * steps, *shape), np.float32)
    y = random.integers(0, 10, batch * steps)
    model.fit(x, y, batch_size=batch, epochs=EPOCHS + 1, verbose=0, callbacks=callbacks)
    if not is_rank or ddl.is_root():
        speed = batch * steps / statistics.median(clock.seconds[1:])
        pathlib.Path(file).write_text(json.dumps(speed))


def speed_of(ranks, name, options, file):
    """A process's samples per second; `ranks` is 0 for Keras alone."""
    line = [sys.executable, __file__, "--worker", name, str(options.batch), file]
    if ranks:
        line = mpi.command(ranks, line)
    env = {**os.environ, "KERAS_BACKEND": options.backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    subprocess.run(line, check=True, env=env, timeout=600)
    return json.loads(pathlib.Path(file).read_text())


def compare(name, options, file):
    speeds = {ranks: [] for ranks in (0, *sorted(options.ranks))}
    for _ in range(options.rounds):
        for ranks, found in speeds.items():
            found.append(speed_of(ranks, name, options, file))
    medians = {ranks: statistics.median(found) for ranks, found in speeds.items()}
    print(f"{options.backend}, {name}, batches of {options.batch}: samples/s of a process")
    for ranks, median in medians.items():
        who = f"easyddl, ranks: {ranks}" if ranks else "Keras alone"
        print(f"  {who:20} {median:10.0f} {median / medians[0]:6.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["jax", "torch", "tensorflow"], default="jax")
    parser.add_argument("--models", nargs="+", default=["mnist_cnn", "mlp"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, batch, file = options.worker
        return train(name, int(batch), file)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            compare(name, options, str(pathlib.Path(folder, "speed.json")))


if __name__ == "__main__":
    main()
