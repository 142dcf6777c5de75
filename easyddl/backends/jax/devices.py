"""This rank's share of the host's GPUs and cores, on JAX."""

import os
import pathlib

import jax

from easyddl.backends.base import Backend
from easyddl.backends.jax import private
from easyddl.hosts import launched_process
from easyddl.runtime import affinity

_MULTI_THREAD = "xla_cpu_multi_thread_eigen"
_VISIBLE, _ALL = "jax_cuda_visible_devices", "all"


class JaxDevices(Backend):
    """Devices of a `JaxBackend`."""

    _own_threads = None  # the value of NPROC that easyddl has set

    def pin_gpu(self, local_rank):
        if private.backends_are_initialized():
            if jax.default_backend() == "gpu" and jax.local_device_count() > 1:
                raise RuntimeError("JAX has allocated memory on all GPUs.")
            return
        # Count the GPUs without JAX: it would allocate memory on all of them.
        gpus = _visible_gpus()
        if gpus == 0 or jax.config.read(_VISIBLE) != _ALL:
            return
        jax.config.update(_VISIBLE, str(local_rank % gpus))
        if launched_process.local_size() > gpus:
            # Otherwise each rank would preallocate three quarters of the memory of the shared GPU.
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    def share_cores(self, threads):
        # XLA creates a pool of NPROC threads (by default one for each core) at its first operation.
        # The flag _MULTI_THREAD decides whether one operation uses several of them. If the user
        # has set either, easyddl changes nothing.
        if os.environ.get("NPROC") not in (None, self._own_threads):
            return
        if _MULTI_THREAD in os.environ.get("XLA_FLAGS", ""):
            return
        if private.backends_are_initialized():
            raise RuntimeError("JAX has created its threads.")
        os.environ["NPROC"] = self._own_threads = str(threads)

    def threads_of_operations(self):
        if f"{_MULTI_THREAD}=false" in os.environ.get("XLA_FLAGS", ""):
            return 1
        return affinity.threads_in_environment("NPROC")


def _visible_gpus():
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return len([each for each in named.split(",") if each.strip()])
    return len(list(pathlib.Path("/dev").glob("nvidia[0-9]*")))
