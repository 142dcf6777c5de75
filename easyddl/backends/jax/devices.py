"""This rank's share of the machine's GPUs and cores, on JAX."""

import os
import pathlib
import warnings

import jax

from easyddl.backends.base import Backend
from easyddl.backends.jax import private
from easyddl.runtime import affinity, launcher

_MULTI_THREAD = "xla_cpu_multi_thread_eigen"
_VISIBLE, _ALL = "jax_cuda_visible_devices", "all"


class JaxDevices(Backend):
    """Devices of a `JaxBackend`."""

    _own_threads = None  # the value of NPROC that easyddl has set

    def configure(self):
        if launcher.size() is None:
            return
        if private.backends_are_initialized():
            warnings.warn(
                "JAX ran operations before easyddl was imported, so each rank may use all cores "
                "and GPUs of its machine. Import easyddl first.",
                stacklevel=2,
            )
            return
        if launcher.knows_local_rank():
            _pin_gpu(launcher.local_rank())
        if affinity.are_limited():
            self.share_cores(affinity.compute_threads())

    def pin_gpu(self, local_rank):
        if not private.backends_are_initialized():
            _pin_gpu(local_rank)
        elif jax.default_backend() == "gpu" and jax.local_device_count() > 1:
            warnings.warn(
                "JAX ran operations before the ranks knew each other, and no launcher has said "
                "which GPU is this rank's: it uses all GPUs of its machine. Call "
                "`easyddl.init()` first.",
                stacklevel=2,
            )

    def share_cores(self, threads):
        # XLA makes a pool of NPROC threads, or of one a core, when it runs its first operation. One
        # of its flags decides whether an operation uses several of them. Where the user has set
        # either, it stays.
        if os.environ.get("NPROC") not in (None, self._own_threads):
            return
        if _MULTI_THREAD in os.environ.get("XLA_FLAGS", ""):
            return
        os.environ["NPROC"] = self._own_threads = str(threads)

    def threads_of_operations(self):
        if f"{_MULTI_THREAD}=false" in os.environ.get("XLA_FLAGS", ""):
            return 1
        return affinity.threads_in_environment("NPROC")


def _pin_gpu(local_rank):
    # Counted without JAX, which would take all of them to count them.
    gpus = _visible_gpus()
    if gpus == 0 or jax.config.read(_VISIBLE) != _ALL:
        return
    jax.config.update(_VISIBLE, str(local_rank % gpus))
    if launcher.local_size() > gpus:
        # Each would take three quarters of the memory of a GPU that it shares.
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def _visible_gpus():
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([each for each in named.split(",") if each.strip()])
    return len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
