"""The memory of a PyTorch tensor that the engine reduces."""

import math
import warnings

import torch

from easyddl.runtime import world


class TensorBuffer:
    """Where the engine reads a tensor, and where it writes the result.

    Args:
        tensor: A dense tensor on any device.
        in_place: Boolean. Whether the result may overwrite the tensor.
        device: `torch.device`. The device whose memory the engine uses.
    """

    def __init__(self, tensor, in_place, device):
        tensor = tensor.detach()
        self._device = tensor.device
        if device.type == "cpu" and tensor.device.type != "cpu":
            _warn_of_the_host(tensor.device.type)
        self._source = tensor.to(device).contiguous()
        # Nobody else needs a copy, so the result may overwrite it.
        is_copy = self._source.data_ptr() != tensor.data_ptr()
        self._target = self._source if in_place or is_copy else torch.empty_like(self._source)

    @property
    def address(self):
        """The addresses to read from and to write to, and the number of bytes."""
        size = math.prod(self._source.shape) * self._source.element_size()
        return self._source.data_ptr(), self._target.data_ptr(), size

    def result(self):
        """What the engine has written, on the tensor's device."""
        return self._target.to(self._device)


_warned = set()


def _warn_of_the_host(kind):
    if kind not in _warned and world.is_root():
        _warned.add(kind)
        warnings.warn(
            f"Gradients on {kind} devices are exchanged by way of the host's memory.",
            stacklevel=2,
        )
