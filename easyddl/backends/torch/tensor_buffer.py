"""The memory of a PyTorch tensor that the engine reduces."""

import math

import torch

from easyddl.runtime import notices


class TensorBuffer:
    """The memory from which the engine reads a tensor, and to which it writes the result.

    Args:
        tensor: A dense tensor on any device.
        in_place: Boolean. Whether the result may overwrite the tensor.
        device: `torch.device`. The device whose memory the engine uses.
    """

    def __init__(self, tensor, in_place, device):
        tensor = tensor.detach()
        self._device = tensor.device
        if device.type == "cpu" and tensor.device.type != "cpu":
            notices.warn_once(
                ("host memory", tensor.device.type),
                f"Gradients on {tensor.device.type} devices are reduced in the host's memory.",
            )
        self._source = tensor.to(device).contiguous()
        # A copy is used here only, so the result may overwrite it.
        is_copy = self._source.data_ptr() != tensor.data_ptr()
        self._target = self._source if in_place or is_copy else torch.empty_like(self._source)

    @property
    def address(self):
        """The addresses to read from and to write to, and the number of bytes."""
        size = math.prod(self._source.shape) * self._source.element_size()
        return self._source.data_ptr(), self._target.data_ptr(), size

    def result(self):
        """Returns the result that the engine has written, on the tensor's device."""
        return self._target.to(self._device)
