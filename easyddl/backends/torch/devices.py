"""This rank's share of the machine's GPUs and cores, on PyTorch."""

import os

import torch

from easyddl.backends.base import Backend
from easyddl.runtime import affinity, launcher


class TorchDevices(Backend):
    """Devices of a `TorchBackend`."""

    _own_threads = None  # the number that easyddl has set
    _most_threads = None  # the number that PyTorch takes when left to itself

    def configure(self):
        if launcher.size() is None:
            return
        if launcher.knows_local_rank():
            self.pin_gpu(launcher.local_rank())
        if affinity.are_limited():
            self.share_cores(affinity.compute_threads())

    def pin_gpu(self, local_rank):
        # Keras's "cuda" is PyTorch's current device. One that was set before is the user's choice.
        if "KERAS_TORCH_DEVICE" in os.environ or not torch.cuda.is_available():
            return
        if torch.cuda.is_initialized() and torch.cuda.current_device() != 0:
            return
        torch.cuda.set_device(local_rank % torch.cuda.device_count())

    def share_cores(self, threads):
        if {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & set(os.environ):
            return
        # Left to itself PyTorch takes every core, or one thread of each where there are two.
        every = len(os.sched_getaffinity(0))
        now = torch.get_num_threads()
        if now == self._own_threads or now in (every, every // 2):
            most = self._most_threads = self._most_threads or now
            self._own_threads = min(threads, most)
            torch.set_num_threads(self._own_threads)

    def threads_of_operations(self):
        return torch.get_num_threads()
