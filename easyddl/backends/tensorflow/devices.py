"""This rank's share of the machine's GPUs and cores, on TensorFlow."""

import os
import warnings

import tensorflow as tf

from easyddl.backends.base import Backend
from easyddl.runtime import affinity, launcher


class TensorFlowDevices(Backend):
    """Devices of a `TensorFlowBackend`."""

    def configure(self):
        if launcher.size() is None:
            return
        try:
            if launcher.knows_local_rank():
                _pin_gpu(launcher.local_rank())
            if launcher.local_size() > 1:
                share_cores()
        except RuntimeError:  # TensorFlow has run operations, and its devices are fixed
            warnings.warn(
                "TensorFlow ran operations before easyddl was imported, so each rank may use all "
                "cores and GPUs of its machine. Import easyddl first.",
                stacklevel=2,
            )

    def pin_gpu(self, local_rank):
        try:
            _pin_gpu(local_rank)
        except RuntimeError:
            warnings.warn(
                "TensorFlow ran operations before the ranks knew each other, and no launcher has "
                "said which GPU is this rank's: it uses all GPUs of its machine. Call "
                "`easyddl.init()` first.",
                stacklevel=2,
            )


def _pin_gpu(local_rank):
    gpus = tf.config.get_visible_devices("GPU")
    if not gpus:
        return
    mine = gpus[local_rank % len(gpus)]
    tf.config.set_visible_devices(mine, "GPU")
    tf.config.experimental.set_memory_growth(mine, True)


def share_cores():
    """Limits TensorFlow's threads to this rank's cores, where the user has set no number."""
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        threads = affinity.compute_threads()
        if tf.config.threading.get_intra_op_parallelism_threads() == 0:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        if tf.config.threading.get_inter_op_parallelism_threads() == 0:
            # Two at least: one may wait in an exchange while the other computes.
            tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
