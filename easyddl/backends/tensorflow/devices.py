"""This rank's share of the host's GPUs and cores, on TensorFlow."""

import contextlib
import os
import warnings

import tensorflow as tf

from easyddl.backends.base import Backend
from easyddl.hosts import launched_process
from easyddl.runtime import affinity

_VARIABLES = {"intra": "TF_NUM_INTRAOP_THREADS", "inter": "TF_NUM_INTEROP_THREADS"}

_own = {}  # the numbers of threads that easyddl has set


class TensorFlowDevices(Backend):
    """Devices of a `TensorFlowBackend`."""

    def configure(self):
        if launched_process.size() is None:
            return
        try:
            if launched_process.knows_local_rank():
                _pin_gpu(launched_process.local_rank())
            if affinity.are_limited():
                _share_cores(affinity.compute_threads())
        except RuntimeError:  # TensorFlow has run operations, and its devices are fixed
            warnings.warn(
                "TensorFlow ran operations before easyddl was imported, so each rank may use all "
                "cores and GPUs of its host. Import easyddl first.",
                stacklevel=2,
            )

    def pin_gpu(self, local_rank):
        try:
            _pin_gpu(local_rank)
        except RuntimeError:
            warnings.warn(
                "TensorFlow ran operations before easyddl started, and no launcher set this "
                "rank's number on its host, so this rank uses all GPUs of its host. Call "
                "`easyddl.init()` before any operation of TensorFlow.",
                stacklevel=2,
            )

    def share_cores(self, threads):
        # TensorFlow's threads are fixed once it has run operations.
        with contextlib.suppress(RuntimeError):
            _share_cores(threads)

    def threads_of_operations(self):
        set_here = tf.config.threading.get_intra_op_parallelism_threads()
        return set_here or affinity.threads_in_environment(_VARIABLES["intra"])


def _pin_gpu(local_rank):
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return
    mine = gpus[local_rank % len(gpus)]
    tf.config.set_visible_devices(mine, "GPU")
    tf.config.experimental.set_memory_growth(mine, True)


def _share_cores(threads):
    """Sets TensorFlow's numbers of threads that the user has not set."""
    settings = tf.config.threading
    # At least two inter-op threads: one may wait in a collective while the other computes.
    for kind, count in (("intra", threads), ("inter", max(2, threads))):
        if _VARIABLES[kind] in os.environ:
            continue  # a setting made here would override the user's variable
        now = getattr(settings, f"get_{kind}_op_parallelism_threads")()
        if now in (0, _own.get(kind)):
            getattr(settings, f"set_{kind}_op_parallelism_threads")(count)
            _own[kind] = count
