"""Steps with a large embedding: its gradient by rows, and as a dense one.

    EASYDDL_HOSTS=a,b KERAS_BACKEND=tensorflow mpirun -np 2 python tutorials/benchmarks/sparse.py

The two names make two hosts of one machine, so that all data cross MPI. What a rank sends is
computed from what the engine is handed: of dense gradients 2 (n - 1) / n of their bytes, of rows
(n - 1) / n of those of all ranks.
"""

import argparse
import functools
import math
import statistics

import keras
import numpy as np
from epoch_clock import EpochClock

import easyddl as ddl
from easyddl.reducer.gradient_list import GradientList

EPOCHS = 3  # and one before, which does not count
OPTIMIZERS = {
    "SGD": lambda: keras.optimizers.SGD(0.01),
    "Adam": lambda: keras.optimizers.Adam(0.001),
}


def noted_lists():
    """A list of all lists of gradients that are registered from now on."""
    noted, original = [], GradientList.__init__

    @functools.wraps(original)
    def init(self, *arguments, **options):
        original(self, *arguments, **options)
        noted.append(self)

    GradientList.__init__ = init
    return noted


def sent_bytes(gradients):
    """What a rank has sent in a step, on average."""
    others = (ddl.size() - 1) / ddl.size()
    steps, counts = gradients._registration.engine.gathered
    rows = sum(
        count * (8 + row_bytes)
        for count, (_, _, _, row_bytes) in zip(counts, gradients._tables, strict=True)
    )
    dense = [shape for i, (_, shape) in enumerate(gradients._specs) if i not in gradients._sparse]
    dense_bytes = sum(4 * math.prod(shape) for shape in dense)
    return others * (2 * dense_bytes + rows / steps)


def train(make, options, sparse_as_dense, noted):
    """Seconds of a step, and the bytes that a rank sends in it."""
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Input((options.words,), dtype="int32"),
            layers.Embedding(options.rows, options.width),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1),
        ]
    )
    model.compile(make(), "mse", jit_compile=False)
    random = np.random.default_rng(ddl.rank())
    x = random.integers(0, options.rows, (options.batch * options.steps, options.words))
    noted.clear()
    clock = EpochClock()
    callbacks = [ddl.DDLCallback(sparse_as_dense=sparse_as_dense), clock]
    model.fit(
        x, x[:, 0] / options.rows, batch_size=options.batch, epochs=EPOCHS + 1, verbose=0,
        callbacks=[*callbacks, ddl.DDLGlobalVariablesCallback()],
    )  # fmt: skip
    seconds = statistics.median(clock.seconds[1:]) / options.steps
    return seconds, sum(map(sent_bytes, noted))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64, help="samples of a rank")
    parser.add_argument("--words", type=int, default=20, help="of a sample")
    parser.add_argument("--steps", type=int, default=5, help="of an epoch")
    options = parser.parse_args()
    noted = noted_lists()
    for name, make in OPTIMIZERS.items():
        for kind, sparse_as_dense in (("rows", False), ("dense", True)):
            seconds, sent = train(make, options, sparse_as_dense, noted)
            if ddl.is_root():
                figures = f"{seconds * 1e3:9.1f} ms {sent / 1e6:10.3f} MB"
                print(f"{name:<5} {kind:<6} {figures}", flush=True)


if __name__ == "__main__":
    main()
