"""This rank's share of the host's GPUs and cores, on PyTorch."""

import os

import torch

from easyddl.backends.base import Backend


class TorchDevices(Backend):
    """Devices of a `TorchBackend`."""

    _own_threads = None  # the number that easyddl has set
    _most_threads = None  # PyTorch's default number

    def pin_gpu(self, local_rank):
        # Keras's "cuda" is PyTorch's current device. If it is not device 0, the user has chosen it.
        if "KERAS_TORCH_DEVICE" in os.environ or not torch.cuda.is_available():
            return
        if torch.cuda.is_initialized() and torch.cuda.current_device() != 0:
            return
        torch.cuda.set_device(local_rank % torch.cuda.device_count())

    def share_cores(self, threads):
        if {"OMP_NUM_THREADS", "MKL_NUM_THREADS"} & set(os.environ):
            return
        # By default PyTorch uses all CPUs, or one CPU of each core that has two.
        every = len(os.sched_getaffinity(0))
        now = torch.get_num_threads()
        if now == self._own_threads or now in (every, every // 2):
            most = self._most_threads = self._most_threads or now
            self._own_threads = min(threads, most)
            torch.set_num_threads(self._own_threads)

    def threads_of_operations(self):
        return torch.get_num_threads()
