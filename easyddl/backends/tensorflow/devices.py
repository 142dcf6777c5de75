"""This rank's share of the host's GPUs and cores, on TensorFlow."""

import os

import tensorflow as tf

from easyddl.backends.base import Backend
from easyddl.runtime import affinity

_VARIABLES = {"intra": "TF_NUM_INTRAOP_THREADS", "inter": "TF_NUM_INTEROP_THREADS"}


class TensorFlowDevices(Backend):
    """Devices of a `TensorFlowBackend`. TensorFlow raises an error if it is too late for a change.

    Its devices and threads are fixed once it has run operations.
    """

    def __init__(self):
        self._own_threads = {}  # the numbers of threads that easyddl has set

    def pin_gpu(self, local_rank):
        gpus = tf.config.get_visible_devices("GPU")
        if gpus:
            mine = gpus[local_rank % len(gpus)]
            tf.config.set_visible_devices(mine, "GPU")
            tf.config.experimental.set_memory_growth(mine, True)

    def share_cores(self, threads):
        settings = tf.config.threading
        # At least two inter-op threads: one may wait in a collective while the other computes.
        for kind, count in (("intra", threads), ("inter", max(2, threads))):
            if _VARIABLES[kind] in os.environ:
                continue  # a setting made here would override the user's variable
            now = getattr(settings, f"get_{kind}_op_parallelism_threads")()
            if now in (0, self._own_threads.get(kind)):
                getattr(settings, f"set_{kind}_op_parallelism_threads")(count)
                self._own_threads[kind] = count

    def gains_by_overlap(self, cores):
        # On a single core the reduction and the update of its variables take their time from the
        # backward pass, and its data from the cache: performance.md has the figures.
        return cores > 1

    def threads_of_operations(self):
        set_here = tf.config.threading.get_intra_op_parallelism_threads()
        return set_here or affinity.threads_in_environment(_VARIABLES["intra"])
