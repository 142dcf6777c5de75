"""A job that reduces much data again and again, in which the last rank is killed meanwhile."""

import os
import signal
import threading
import time

import engine_only  # noqa: F401  (first)
import numpy as np
from telling import tell

from easyddl.runtime import world


def kill():
    tell("fault at", time.time())
    os.kill(os.getpid(), signal.SIGKILL)


def main():
    communicator = world.engine().communicator
    data = np.ones(4_000_000, np.float32)
    result = np.empty_like(data)
    inputs, outputs = [data.view(np.uint8)], [result.view(np.uint8)]
    fingerprint = world.fingerprint("a reduction")
    communicator.allreduce(inputs, outputs, "float32", "sum", fingerprint)
    if world.rank() == world.size() - 1:
        threading.Timer(0.3, kill).start()
    while True:
        communicator.allreduce(inputs, outputs, "float32", "sum", fingerprint)
        assert (result == world.size()).all()


if __name__ == "__main__":
    main()
