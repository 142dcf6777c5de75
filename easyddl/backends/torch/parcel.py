"""A tensor of PyTorch's on its way through the engine."""

import math
import warnings

import torch

from easyddl.runtime import world


class Parcel:
    """Where a tensor is read, and where its result goes.

    Args:
        tensor: A dense tensor on any device.
        in_place: Boolean. Whether the result may take its place.
        device: `torch.device`. The one that it goes from.
    """

    def __init__(self, tensor, in_place, device):
        tensor = tensor.detach()
        self._device = tensor.device
        if device.type == "cpu" and tensor.device.type != "cpu":
            _tell_of_the_host(tensor.device.type)
        # A copy is ours, and so its result goes there.
        self._source = tensor.to(device).contiguous()
        is_copy = self._source.data_ptr() != tensor.data_ptr()
        self._target = self._source if in_place or is_copy else torch.empty_like(self._source)

    @property
    def address(self):
        """What the engine needs to know."""
        size = math.prod(self._source.shape) * self._source.element_size()
        return self._source.data_ptr(), self._target.data_ptr(), size

    def result(self):
        """What has come back, on the tensor's device."""
        return self._target.to(self._device)


_told = set()


def _tell_of_the_host(kind):
    if kind not in _told and world.is_root():
        _told.add(kind)
        warnings.warn(
            f"Gradients on {kind} devices are exchanged by way of the host's memory.",
            stacklevel=2,
        )
