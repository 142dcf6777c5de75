"""A job whose steps exchange gradients on GPUs, until something goes wrong:  SCRIPT how"""

import os
import signal
import sys
import time

if "--keras" not in sys.argv:
    import engine_only  # noqa: F401  (first)
import numpy as np
from gpu_arrays import Array, Stream, take_gpu

from easyddl.runtime import world

STEPS = 6
kept = []


def open_model(what="a model"):
    engine = world.engine()
    return engine.core.Reducer(engine.reducer_group, what, [("float32", [20])])


def step(model, array, stream):
    pieces = [(array.address, array.address, 20)]
    model.submit_on_gpu(0, pieces, 1, 0, stream.number)
    stream.synchronize()


def train(before=lambda number: None):
    model, stream = open_model(), Stream()
    array = Array(np.ones(5, np.float32))
    for number in range(STEPS):
        before(number)
        step(model, array, stream)
        assert array.get().tolist() == [1] * 5
    print(f"rank {world.rank()} has trained", flush=True)
    model.close()


def well():
    train()


def sleep():
    """One rank stays away from the fourth step."""
    train(lambda number: time.sleep(600) if (number, world.rank()) == (3, 1) else None)


def other_version():
    os.environ["STAND_IN_NCCL_VERSION"] = str(22700 + world.rank())
    train()


def other_order():
    """Each rank takes the steps of two exchanges in an order of its own."""
    models, stream = [open_model("one model"), open_model("another")], Stream()
    array = Array(np.ones(5, np.float32))
    for model in models:
        step(model, array, stream)
    for model in models if world.rank() == 0 else models[::-1]:
        step(model, array, stream)
    print(f"rank {world.rank()} has trained", flush=True)


def three_exchanges():
    models, stream = [open_model() for _ in range(3)], Stream()
    array = Array(np.ones(5, np.float32))
    for _ in range(2):
        for model in models:
            step(model, array, stream)
    train()
    for model in models:
        model.close()


def ends_while_steps_are_queued():
    """As a loop that does not look at its last steps, and closes nothing."""
    model, stream = open_model(), Stream()
    array = Array(np.ones(5, np.float32))
    pieces = [(array.address, array.address, 20)]
    for _ in range(40):
        model.submit_on_gpu(0, pieces, 1, 0, stream.number)
    kept.append((array, stream))  # what ends here would wait for the GPU
    print(f"rank {world.rank()} has trained", flush=True)


def killed():
    """One rank is killed before the fourth step."""
    train(lambda n: os.kill(os.getpid(), signal.SIGKILL) if (n, world.rank()) == (3, 1) else None)


def raises():
    def check(number):
        if (number, world.rank()) == (3, 1):
            raise RuntimeError("one rank alone")

    train(check)


def host_and_gpu():
    """One rank trains on the host, the other on a GPU."""
    if world.rank() == 0:
        return train()
    import tensorflow as tf

    from easyddl import backends

    submitter = backends.require().submitter(open_model(), [[0]], [(5,)])
    return submitter.reduce([tf.ones(5)], None)


world.init()
if "--host-ids" in sys.argv:
    # NCCL takes ranks of one GPU for ranks of several hosts.
    os.environ["NCCL_HOSTID"] = f"id {world.rank()}"
take_gpu(0 if "--share" in sys.argv else world.local_rank())
globals()[sys.argv[1]]()
