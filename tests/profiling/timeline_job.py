"""A job that trains, and then ends in the way that the command line says.

Usage: timeline_job.py well|raise|kill, or timeline_job.py refused FOLDER VALUE...

The latter starts each rank with an EASYDDL_TIMELINE of its own, and notes in FOLDER what it was
told.
"""

import os
import pathlib
import signal
import sys
import time

if sys.argv[1] == "refused":
    import engine_only  # noqa: F401  (first)
else:
    import keras
import numpy as np

import easyddl as ddl
from easyddl.hosts import launched_process


def train():
    random = np.random.default_rng(ddl.rank())
    x = random.standard_normal((48, 64)).astype("float32")
    model = keras.Sequential(
        [keras.layers.Input((64,)), keras.layers.Dense(500), keras.layers.Dense(64)]
    )
    model.compile("sgd", "mse")
    wire_dtype = "bfloat16" if ddl.num_nodes() == 1 else "float32"  # no message is in bfloat16
    callbacks = [
        ddl.DDLCallback(bucket_bytes=20_000, wire_dtype=wire_dtype),
        ddl.DDLGlobalVariablesCallback(),
    ]
    model.fit(x, x, batch_size=8, epochs=2, verbose=0, callbacks=callbacks)


def end(how):
    if how == "well" or ddl.rank() != ddl.size() - 1:
        ddl.barrier()  # where the others wait in vain
    elif how == "raise":
        raise RuntimeError("as the test wants it")
    else:
        time.sleep(1)  # for the others to wait
        os.kill(os.getpid(), signal.SIGKILL)


def be_refused(folder, values):
    os.environ["EASYDDL_TIMELINE"] = values[launched_process.rank()]
    try:
        ddl.init()
    except ValueError as error:
        pathlib.Path(folder, f"told-{launched_process.rank()}").write_text(str(error))
        raise


if __name__ == "__main__":
    if sys.argv[1] == "refused":
        be_refused(sys.argv[2], sys.argv[3:])
    else:
        train()
        ddl.allreduce(np.ones(3_000_000, "float32"))  # several chunks
        ddl.allreduce(np.ones(1000, "float32"))  # at once, on one host
        end(sys.argv[1])
