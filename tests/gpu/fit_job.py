"""A fit whose weights are written to a file:  SCRIPT FILE [--share]"""

import os
import sys

if "--share" in sys.argv:
    # NCCL takes ranks of one GPU for ranks of several hosts.
    from mpi4py import MPI

    os.environ["NCCL_HOSTID"] = f"rank {MPI.COMM_WORLD.rank}"

import keras
import numpy as np

import easyddl as ddl

keras.utils.set_random_seed(1)
model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3),
        keras.layers.Flatten(),
        keras.layers.Dense(16, "relu"),
        keras.layers.Dense(3),
    ]
)
model.compile(
    keras.optimizers.SGD(0.05, momentum=0.9),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
# A GPU draws other numbers than a CPU.
random = np.random.default_rng(0)
model.set_weights([random.normal(0, 0.2, w.shape) for w in model.get_weights()])
x, y = random.standard_normal((256, 8, 8, 1)).astype("float32"), random.integers(0, 3, 256)
x, y = ddl.split_data(x, y)
callbacks = [ddl.DDLCallback(bucket_bytes=4096), ddl.DDLGlobalVariablesCallback()]
model.fit(
    x, y, batch_size=32 // ddl.size(), epochs=3, shuffle=False, verbose=0, callbacks=callbacks
)

flat = np.concatenate([np.asarray(w).ravel() for w in model.get_weights()])
everyones = ddl.allgather(flat[None])
assert all(theirs.tobytes() == flat.tobytes() for theirs in everyones), "the ranks differ"
if ddl.is_root():
    np.save(sys.argv[1], flat)
